// Arithmetic that decides a draw: whole numbers, and a logarithm of single IEEE operations in a fixed order,
// so that every machine decides alike.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/token_weight.h"

namespace moeflux {

inline constexpr uint64_t kMostTokens = uint64_t{1} << 22;  // so that a sum of weights fits in 62 bits

// A number from 0 to 1 in the units of weights, and the share that it is of a sum, rounded up.
using Fraction = uint64_t;
inline Fraction to_fraction(double share) { return static_cast<Fraction>(share * 0x1p40 + 0.5); }

using WideProduct = unsigned __int128;
inline uint64_t share_of(uint64_t sum, Fraction fraction) {
  return static_cast<uint64_t>((WideProduct{sum} * fraction + (kWeightOne - 1)) >> 40);
}

// A whole number below `sum` from 64 random bits.
inline uint64_t random_below(uint64_t bits, uint64_t sum) {
  return static_cast<uint64_t>((WideProduct{bits} * sum) >> 64);
}

// The natural logarithm for finite normal x > 0; relative error below 1e-15. A library's would differ from
// machine to machine in the last bit.
inline double natural_log(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t power = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffff) | 0x3ff0000000000000);
  if (m > 0x1.6a09e667f3bcdp0) {  // the square root of two: then m stays near one on both sides
    m *= 0.5;
    ++power;
  }
  const double s = (m - 1) / (m + 1), square = s * s;  // log(m) = 2 (s + s^3/3 + s^5/5 + ...)
  double series = 0;
  for (int odd = 23; odd >= 1; odd -= 2) series = series * square + 1.0 / odd;
  return static_cast<double>(power) * kLn2 + 2 * s * series;
}

}  // namespace moeflux
