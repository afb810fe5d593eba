// The generated tables, for unicode.cpp and normalise.cpp only.
#pragma once

#include "text/unicode.h"

namespace moeflux::unicode_data {

struct CombiningRun {
  uint32_t first, last;
  uint8_t combining_class;
};

struct Decomposition {
  uint32_t composed, first, second;
  bool composes;
};

#include "text/unicode_data.inc"

}  // namespace moeflux::unicode_data
