// Grammars as a pushdown automaton over bytes: which continuations of a text keep it on the way to a match.
// A Grammar is immutable and may be shared by threads; a GrammarState is a small value, to be copied at will.
// Every state that is reached can still be completed: what could not end has been cut off when the grammar
// was made. Grammars may be hostile: text, states, nesting and work are bounded, and what is beyond is an
// Error.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_expression.h"

namespace moeflux {

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = std::numeric_limits<NodeId>::max();

inline constexpr size_t kMaxGrammarBytes = size_t{1} << 20;  // of a grammar's text
inline constexpr size_t kMaxGrammarNodes = size_t{1} << 20;  // of the automaton
inline constexpr size_t kMaxGrammarRules = 8192;
inline constexpr uint32_t kMaxGrammarRepetitions = 100'000;  // in {m,n}
inline constexpr uint32_t kMaxGrammarNesting = 100;          // of groups in a rule
inline constexpr uint32_t kMaxGrammarDepth = 1000;  // of calls when matching; deeper texts do not match
inline constexpr size_t kMaxGrammarConfigurations = 1u << 14;  // that one state may hold

struct GrammarNode {
  enum class Kind : uint8_t {
    Bytes,  // edges()[first .. first + count)
    Split,  // goes on at targets()[first .. first + count), without a byte
    Call,   // goes on in callees()[first]; once that ends, at node `count`, or (kNoNode) ends itself
    End,    // back to the caller
  };
  Kind kind = Kind::End;
  uint32_t first = 0, count = 0;
  uint32_t height = kNoNode;  // the least number of frames above this one that an end needs
};

// What is called. One that calls another before it has matched a byte comes before it.
struct GrammarCallee {
  NodeId entry = kNoNode;
  bool nullable = false;  // can end without a byte
};

// Where copies of a repeated part are so far from the first and the last one that no token can tell them
// apart: for the next `bytes` bytes, a node behaves like `target`.
struct NodeAlias {
  NodeId target = kNoNode;
  uint32_t bytes = 0;
  uint32_t next = kNoNode;  // index of another alias of the same node
};

struct GrammarLink {           // a caller that is waiting
  NodeId return_to = kNoNode;  // kNoNode: nobody is, the text ends here
  uint32_t parent = 0;         // the frame that it has itself
  auto operator<=>(const GrammarLink&) const = default;
};

// All callers that wait for one part. Callers that called at the same place of the text share a frame, so
// that the number of frames does not grow with the number of readings.
struct GrammarFrame {
  std::vector<GrammarLink> links;  // sorted; parents have lower numbers
  uint32_t depth = 0;              // of the deepest
  bool operator==(const GrammarFrame&) const = default;
};

struct GrammarConfiguration {
  NodeId node = 0;     // a Bytes node
  uint32_t frame = 0;  // 0: only the end of the text waits
  auto operator<=>(const GrammarConfiguration&) const = default;
};

class GrammarState {
 public:
  bool accepting() const { return accepting_; }           // the text so far is complete
  bool final() const { return configurations_.empty(); }  // nothing can follow
  const std::vector<GrammarFrame>& frames() const { return frames_; }
  const std::vector<GrammarConfiguration>& configurations() const { return configurations_; }
  bool operator==(const GrammarState&) const = default;

 private:
  friend class Grammar;
  std::vector<GrammarFrame> frames_{GrammarFrame{{GrammarLink{}}, 0}};
  std::vector<GrammarConfiguration> configurations_;  // sorted
  bool accepting_ = false;
};

enum class GrammarCopies { Some, Always };  // of parts that repeat; always: there are no calls without rules

class Grammar {
 public:
  // Throws Error{InvalidArgument} with line and column.
  static Grammar parse(std::string_view text);
  explicit Grammar(const GrammarRules& rules, GrammarCopies copies = GrammarCopies::Some);

  GrammarState start() const;
  // Moves a state past these bytes; false where they do not fit, and the state is as it was.
  bool advance(GrammarState& state, std::string_view bytes) const;
  bool matches(std::string_view text) const;

  NodeId root() const { return root_; }
  const std::vector<GrammarNode>& nodes() const { return nodes_; }
  const std::vector<ByteEdge>& edges() const { return edges_; }
  const std::vector<NodeId>& targets() const { return targets_; }
  const std::vector<GrammarCallee>& callees() const { return callees_; }
  NodeId stand_in(NodeId node, size_t bytes) const;  // a node that behaves the same for so many bytes

 private:
  friend class GrammarBuilder;
  NodeId root_ = 0;
  std::vector<GrammarNode> nodes_;
  std::vector<ByteEdge> edges_;
  std::vector<NodeId> targets_;
  std::vector<GrammarCallee> callees_;
  std::vector<uint32_t>
      first_alias_;  // per node: index into aliases_, or kNoNode; may be shorter than nodes_
  std::vector<NodeAlias> aliases_;
};

// The rules of a grammar's text, as parse() reads them.
GrammarRules parse_grammar_rules(std::string_view text);

}  // namespace moeflux
