// Chances of tokens as whole numbers. A token's weight is exp(exponent) in units of 2^-40, rounded: the
// likeliest token has kWeightOne, and sums of weights are exact, so that no order of summation, number of
// threads or device can change them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/pointwise.h"

namespace moeflux {

inline constexpr uint64_t kWeightOne = uint64_t{1} << 40;
inline constexpr float kLeastExponent = -28.0f;  // the weight here is 1, rounded up; below it is 0
inline constexpr float kHalfWeight = 0x1p20f;    // a weight has two parts of 20 bits
inline constexpr size_t kLogitBlock = 64;

// How the logits of one position become exponents; most >= x, most is finite, x may be -infinity.
struct Weighing {
  float most;
  float inverse_temperature;  // > 0, finite
};

// The high part is the nearest whole number, and the low part what that leaves over, so that both conversions
// are to 32 bits. Relative error below 2e-7, and half a unit.
inline uint64_t weight_of(float exponent) {
  if (exponent < kLeastExponent) return 0;
  const float scaled = exp_activation(exponent) * kHalfWeight;
  const float high = std::nearbyint(scaled);
  const float low = std::nearbyint((scaled - high) * kHalfWeight);
  return static_cast<uint64_t>(static_cast<int64_t>(high) * (1 << 20) + static_cast<int64_t>(low));
}

inline float exponent_of(const Weighing& w, float x) { return (x - w.most) * w.inverse_temperature; }

}  // namespace moeflux
