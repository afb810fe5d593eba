// Regular languages: patterns as JSON schemas write them, and automata that can be combined. Bytes are UTF-8.
// The number of states is bounded; a language that needs more throws Error{Unsupported}.
#pragma once

#include <string_view>
#include <vector>

#include "text/grammar_expression.h"

namespace moeflux {

// Bytes that no UTF-8 text holds stand for the assertions "at the start" and "at the end" in an expression
// that a pattern gave; automaton_of() gives them their meaning.
inline constexpr char kTextStart = '\xFE', kTextEnd = '\xFF';

// A pattern (ECMAScript without look-behind, back references, word boundaries and Unicode properties;
// look-ahead only at its start, after '^'), as all texts that hold a match of it. Throws Error{Unsupported}
// for what it lacks and Error{InvalidArgument} for mistakes, with the offset.
struct SearchPattern {
  Expression text;  // matches the whole text; may hold assertions, but not at its two ends only
  std::vector<Expression> required;  // from look-ahead: the whole text matches these as well
  std::vector<Expression> excluded;  // and none of these
};
SearchPattern parse_pattern(std::string_view pattern);
bool has_assertions(const Expression& expression);

// What the automata of one grammar may cost together, in steps of some ten nanoseconds.
struct RegularWork {
  size_t left = 100'000'000;
  void spend(size_t steps);  // throws Error{Unsupported} where nothing is left
};

// The deterministic automaton of an expression without rules.
ByteGraph automaton_of(const Expression& expression, RegularWork& work);
ByteGraph automaton_of(const SearchPattern& pattern, RegularWork& work);
ByteGraph intersection(const ByteGraph& a, const ByteGraph& b,
                       RegularWork& work);                        // of deterministic automata
ByteGraph complement(const ByteGraph& graph, RegularWork& work);  // all other valid UTF-8 texts
bool accepts(const ByteGraph& graph, std::string_view text);      // of a deterministic automaton
bool is_empty(const ByteGraph& graph);

}  // namespace moeflux
