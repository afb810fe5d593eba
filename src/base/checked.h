// Arithmetic on sizes that come from files: an overflow is an Error that names the thing, never a
// wrap-around.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace moeflux {

inline uint64_t checked_mul(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product))
    fail(Errc::Corrupt, "{}: {} * {} does not fit in 64 bits", what, a, b);
  return product;
}

inline uint64_t checked_add(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum))
    fail(Errc::Corrupt, "{}: {} + {} does not fit in 64 bits", what, a, b);
  return sum;
}

constexpr uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
constexpr uint64_t align_up(uint64_t a, uint64_t alignment) { return ceil_div(a, alignment) * alignment; }

}  // namespace moeflux
