// Rules as trees, before they become an automaton: what the grammar text, the schema compiler and the pattern
// compiler all produce. Text is bytes; a class is a set of code points and becomes UTF-8 later.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace moeflux {

struct CodeRange {
  uint32_t low = 0, high = 0;  // inclusive
  bool operator==(const CodeRange&) const = default;
};
using CodeRanges = std::vector<CodeRange>;

CodeRanges normalise(CodeRanges ranges);  // sorted, disjoint, without surrogates and what lies above U+10FFFF
CodeRanges complement(const CodeRanges& normal);
CodeRanges any_code_point();
bool contains(const CodeRanges& normal, uint32_t code);

// Reads one code point of valid UTF-8 at `at` and moves on; throws Error{InvalidArgument} where it is not
// valid.
uint32_t read_utf8(std::string_view text, size_t& at);

struct ByteEdge {
  uint8_t low = 0, high = 0;  // inclusive
  uint32_t target = 0;
  bool operator==(const ByteEdge&) const = default;
};

// A finite automaton over bytes. State 0 is the start; one without states matches nothing.
struct ByteGraph {
  struct State {
    std::vector<ByteEdge> edges;
    bool accepting = false;
  };
  std::vector<State> states;
};

inline constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

struct Expression {
  enum class Kind : uint8_t {
    Literal,   // bytes
    Class,     // one code point of ranges
    Sequence,  // parts one after the other; none: the empty text
    Choice,    // one of parts; none: matches nothing
    Repeat,    // parts[0], least to most times
    Rule,      // another rule
    List,      // parts in order with a separator (the last part) between those that are there; see Presence
    Graph,     // graph
  };
  enum class Presence : uint8_t {
    Required,
    Optional,
    Many
  };  // of an element of a List; Many: any number of times

  Kind kind = Kind::Sequence;
  uint32_t rule = 0;
  uint32_t least = 0, most = kUnbounded;  // Repeat: times; List: elements that are there
  std::string bytes;
  CodeRanges ranges;
  std::vector<Expression> parts;
  std::vector<Presence> presence;
  ByteGraph graph;

  static Expression literal(std::string bytes);
  static Expression one_of(CodeRanges ranges);
  static Expression sequence(std::vector<Expression> parts);
  static Expression choice(std::vector<Expression> parts);
  static Expression repeat(Expression part, uint32_t least, uint32_t most);
  static Expression optional(Expression part) { return repeat(std::move(part), 0, 1); }
  static Expression call(uint32_t rule);
  static Expression of_graph(ByteGraph graph);
  static Expression nothing() { return choice({}); }  // matches no text at all
  static Expression empty() { return sequence({}); }  // matches the empty text
};

struct GrammarRule {
  std::string name;  // for messages
  Expression body;
};

struct GrammarRules {
  std::vector<GrammarRule> rules;
  uint32_t root = 0;

  uint32_t add(std::string name, Expression body);  // the new rule's number
  uint32_t add(GrammarRules others);                // all of them; the number that their root has here
};

}  // namespace moeflux
