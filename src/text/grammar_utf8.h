// Sets of code points as sequences of byte ranges.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "text/grammar_expression.h"

namespace moeflux {

struct ByteRange {
  uint8_t low = 0, high = 0;
  bool operator==(const ByteRange&) const = default;
};

struct Utf8Sequence {  // matches bytes that lie in their ranges, one after the other
  std::array<ByteRange, 4> ranges;
  size_t length = 0;
};

// In ascending order; at each place, the ranges of two sequences with an equal beginning are equal or
// disjoint.
std::vector<Utf8Sequence> utf8_sequences(const CodeRanges& normal);

}  // namespace moeflux
