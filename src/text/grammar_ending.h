// The shortest way to the end of a text, from any state of a grammar: for answers that must come to an end
// although the model would go on. Immutable; may be shared by threads, as the grammar, which outlives it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/grammar.h"

namespace moeflux {

class GrammarEnding {
 public:
  explicit GrammarEnding(const Grammar& grammar);

  // The least number of bytes after which the text is complete; 0 where it is, or where nothing can follow.
  // Near the limit of nesting it may take more.
  uint64_t bytes(const GrammarState& state) const { return best(state).bytes; }
  // The first bytes of such an ending, at most so many; of several equally short ones, that with the lowest
  // bytes.
  std::string text(GrammarState state, size_t most_bytes) const;

 private:
  struct Way {
    uint64_t bytes;
    uint8_t first;  // its first byte, where there is one
  };
  Way best(const GrammarState& state) const;

  const Grammar& grammar_;
  std::vector<uint64_t> bytes_;  // per node: to the end of its own rule
};

}  // namespace moeflux
