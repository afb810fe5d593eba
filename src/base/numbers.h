// Scalar number formats of checkpoints: bf16, f16, FP8 (E4M3), E8M0 scales, FP4 (E2M1). Plain and exact.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace moeflux {

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// E4M3, the variant without infinities: 0x7f and 0xff are NaN, the largest value is 448.
inline float e4m3_to_float(uint8_t b) {
  const int exponent = (b >> 3) & 15, mantissa = b & 7;
  float magnitude;
  if ((b & 0x7f) == 0x7f)
    magnitude = std::bit_cast<float>(0x7fc00000u);
  else if (exponent == 0)
    magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  else
    magnitude = std::bit_cast<float>(static_cast<uint32_t>(exponent + 120) << 23 |
                                     static_cast<uint32_t>(mantissa) << 20);
  return b & 0x80 ? -magnitude : magnitude;
}

inline float e8m0_to_float(uint8_t b) {  // 2^(b-127); 255 is NaN, 0 is the subnormal 2^-127
  if (b == 255) return std::bit_cast<float>(0x7fc00000u);
  return b == 0 ? 0x1p-127f : std::bit_cast<float>(uint32_t{b} << 23);
}

// E2M1 times two is an integer: that is what integer dot products use.
inline constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr float kE2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace moeflux
