// How deep the parts of a tokenizer.json called `Sequence` may lie inside each other.
#pragma once

namespace moeflux {

constexpr int kMaxSequenceDepth = 8;

}  // namespace moeflux
