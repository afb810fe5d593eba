// Regular languages: patterns as JSON schemas write them, and automata that can be combined. Bytes are UTF-8.
// The number of states is bounded; a language that needs more throws Error{Unsupported}.
#pragma once

#include <string_view>

#include "text/grammar_expression.h"

namespace moeflux {

// Bytes that no UTF-8 text holds stand for the assertions "at the start" and "at the end" in an expression
// that a pattern gave; automaton_of() gives them their meaning.
inline constexpr char kTextStart = '\xFE', kTextEnd = '\xFF';

// A pattern (ECMAScript without look-around, back references, word boundaries and Unicode properties). Throws
// Error{Unsupported} for these and Error{InvalidArgument} for mistakes, with the offset.
Expression parse_pattern(std::string_view pattern);

// The same for all texts that hold a match, as schemas mean it, without assertions where the pattern has them
// at its two ends only.
Expression search_expression(std::string_view pattern);
bool has_assertions(const Expression& expression);

// What the automata of one grammar may cost together, in steps of some ten nanoseconds.
struct RegularWork {
  size_t left = 100'000'000;
  void spend(size_t steps);  // throws Error{Unsupported} where nothing is left
};

// The deterministic automaton of an expression without rules.
ByteGraph automaton_of(const Expression& expression, RegularWork& work);
ByteGraph intersection(const ByteGraph& a, const ByteGraph& b,
                       RegularWork& work);                        // of deterministic automata
ByteGraph complement(const ByteGraph& graph, RegularWork& work);  // all other valid UTF-8 texts
bool accepts(const ByteGraph& graph, std::string_view text);      // of a deterministic automaton
bool is_empty(const ByteGraph& graph);

}  // namespace moeflux
