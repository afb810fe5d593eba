// From floats to codes. Affine scales are fitted (least squares over a few starting ranges) rather than taken
// from the extremes: at 4 bits that costs a third of the error in perplexity. Same bits on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeflux {

struct QuantisedGroup {
  uint16_t scale, bias;  // bf16
  double error;          // sum of (w - value)^2
};

// n values (32, 64 or 128) -> codes 0..2^bits-1 (bits 4 or 8), value = scale * code + bias. Values must be
// finite.
QuantisedGroup quantise_affine(const float* w, size_t n, int bits, uint8_t* codes);

// 32 values -> E2M1 codes; returns the E8M0 scale. *error as above.
uint8_t quantise_mxfp4(const float* w, uint8_t* codes, double* error);

}  // namespace moeflux
