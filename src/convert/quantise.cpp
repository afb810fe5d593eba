#include "convert/quantise.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/numbers.h"

namespace moeflux {
namespace {

#define MOEFLUX_INLINE __attribute__((always_inline)) inline

constexpr size_t kLanes = 16;

// Sixteen floats; the compiler cuts them to the width that the processor has. Every lane does the same plain
// operations whatever that width is, so results do not depend on it.
using Lanes = float __attribute__((vector_size(64)));

using Eight = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(64)));
using Bytes = uint8_t __attribute__((vector_size(16)));
using Four = float __attribute__((vector_size(16)));

MOEFLUX_INLINE void load(const float* p, Lanes& v) { __builtin_memcpy(&v, p, sizeof v); }

// Adding and taking away 1.5 * 2^23 rounds to the nearest even integer.
MOEFLUX_INLINE void round_even(Lanes& x) {
  const float magic = 12582912.0f;
  x = x + magic;
  x = x - magic;
}

// Folds the lanes by a tree of halves: lane l with lane l+8, then l with l+4, and so on.
template <class Fold>
MOEFLUX_INLINE float fold_lanes(const Lanes& v, Fold fold) {
  Eight low, high;
  __builtin_memcpy(&low, &v, sizeof low);
  __builtin_memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
  fold(low, high);
  Four a, b;
  __builtin_memcpy(&a, &low, sizeof a);
  __builtin_memcpy(&b, reinterpret_cast<const char*>(&low) + sizeof a, sizeof b);
  fold(a, b);
  b = __builtin_shufflevector(a, a, 2, 3, 2, 3);
  fold(a, b);
  b = __builtin_shufflevector(a, a, 1, 1, 1, 1);
  fold(a, b);
  return a[0];
}
struct Add {
  template <class V>
  MOEFLUX_INLINE void operator()(V& a, const V& b) const {
    a = a + b;
  }
};
struct Least {
  template <class V>
  MOEFLUX_INLINE void operator()(V& a, const V& b) const {
    a = b < a ? b : a;
  }
};
struct Most {
  template <class V>
  MOEFLUX_INLINE void operator()(V& a, const V& b) const {
    a = b > a ? b : a;
  }
};
MOEFLUX_INLINE float sum_lanes(const Lanes& v) { return fold_lanes(v, Add{}); }

struct Line {  // value = scale * code + bias
  float scale, bias;
};

struct Sums {
  float error, q, qq, wq;
};

MOEFLUX_INLINE void codes_of(const Lanes& x, float levels, Line line, float inverse, Lanes& code) {
  const Lanes zero{}, most = zero + levels;
  code = (x - line.bias) * inverse;
  code = code < zero ? zero : code;
  code = code > most ? most : code;
  round_even(code);
}

// The error of one line, and the sums that the next fit needs.
template <size_t N>
MOEFLUX_INLINE Sums judge(const float* w, float levels, Line line) {
  const float inverse = line.scale != 0 ? 1.0f / line.scale : 0.0f;
  Lanes e{}, sq{}, sqq{}, swq{};
  for (size_t i = 0; i < N; i += kLanes) {
    Lanes x, code;
    load(w + i, x);
    codes_of(x, levels, line, inverse, code);
    const Lanes difference = x - (line.scale * code + line.bias);
    e += difference * difference;
    sq += code;
    sqq += code * code;
    swq += x * code;
  }
  return {sum_lanes(e), sum_lanes(sq), sum_lanes(sqq), sum_lanes(swq)};
}

MOEFLUX_INLINE Line to_bf16(double scale, double bias) {
  return {bf16_to_float(float_to_bf16(static_cast<float>(scale))),
          bf16_to_float(float_to_bf16(static_cast<float>(bias)))};
}

// Least squares from one or two starting ranges at once; the rounded line with the smallest error wins. At 4
// bits it pays to start a little inside the extremes as well (relative error of normal values in groups of
// 64: 8.96 % from the extremes alone, 8.57 % with three rounds from there, 8.38 % with three from both; a
// third start changes nothing). At 8 bits the extremes are right.
template <size_t N, size_t kStarts>
MOEFLUX_INLINE void fit_affine(const float* w, float levels, uint8_t* codes, QuantisedGroup* out) {
  Lanes low, high, sums{};
  load(w, low);
  high = low;
  for (size_t i = 0; i < N; i += kLanes) {
    Lanes x;
    load(w + i, x);
    low = x < low ? x : low;
    high = x > high ? x : high;
    sums += x;
  }
  const float least = fold_lanes(low, Least{}), most = fold_lanes(high, Most{});
  const double sum = sum_lanes(sums), middle = (double{least} + most) / 2, half = (double{most} - least) / 2;

  Line lines[kStarts], best{};
  float best_error = FLT_MAX;
  for (size_t s = 0; s < kStarts; ++s) {
    const double range = half * (1.0 - 0.05 * static_cast<double>(s));
    lines[s] = to_bf16(2 * range / levels, middle - range);
  }
  for (int round = 1;; ++round) {
    Sums found[kStarts];
    for (size_t s = 0; s < kStarts; ++s) found[s] = judge<N>(w, levels, lines[s]);
    for (size_t s = 0; s < kStarts; ++s)
      if (found[s].error < best_error) best_error = found[s].error, best = lines[s];
    if (round == (kStarts > 1 ? 3 : 2)) break;
    for (size_t s = 0; s < kStarts; ++s) {
      const double n = N, determinant = n * found[s].qq - double{found[s].q} * found[s].q;
      const double inverse = determinant > 0 ? 1 / determinant : 0;
      const double scale = (n * found[s].wq - found[s].q * sum) * inverse;
      if (determinant > 0) lines[s] = to_bf16(scale, (sum - scale * found[s].q) * (1 / n));
    }
  }
  const float inverse = best.scale != 0 ? 1.0f / best.scale : 0.0f;
  for (size_t i = 0; i < N; i += kLanes) {
    Lanes x, code;
    load(w + i, x);
    codes_of(x, levels, best, inverse, code);
    const Bytes narrow = __builtin_convertvector(__builtin_convertvector(code, Ints), Bytes);
    __builtin_memcpy(codes + i, &narrow, sizeof narrow);
  }
  *out = {float_to_bf16(best.scale), float_to_bf16(best.bias), best_error};
}

MOEFLUX_INLINE void fit_any(const float* w, size_t n, int bits, uint8_t* codes, QuantisedGroup* out) {
  if (bits == 4)
    n == 64   ? fit_affine<64, 2>(w, 15, codes, out)
    : n == 32 ? fit_affine<32, 2>(w, 15, codes, out)
              : fit_affine<128, 2>(w, 15, codes, out);
  else
    n == 64   ? fit_affine<64, 1>(w, 255, codes, out)
    : n == 32 ? fit_affine<32, 1>(w, 255, codes, out)
              : fit_affine<128, 1>(w, 255, codes, out);
}

MOEFLUX_INLINE float assign_mxfp4(const float* w, float scale, uint8_t* codes) {
  const float inverse = 1.0f / scale;
  float error = 0;
  for (size_t i = 0; i < 32; ++i) {
    const float x = w[i] * inverse, a = std::fabs(x);
    const int code =
        (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f);
    const float magnitude =
        code < 5 ? 0.5f * static_cast<float>(code) : static_cast<float>(code) * 2.0f - 8.0f;
    const float value = code == 5 ? 3.0f : magnitude;
    const float difference = std::fabs(w[i]) - value * scale;
    error += difference * difference;
    codes[i] = static_cast<uint8_t>(code | (x < 0 ? 8 : 0));
  }
  return error;
}

using FitFn = void (*)(const float*, size_t, int, uint8_t*, QuantisedGroup*);

void fit_plain(const float* w, size_t n, int bits, uint8_t* codes, QuantisedGroup* out) {
  fit_any(w, n, bits, codes, out);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void fit_avx2(const float* w, size_t n, int bits, uint8_t* codes,
                                              QuantisedGroup* out) {
  fit_any(w, n, bits, codes, out);
}
#if defined(__clang__)  // has no attribute for the width that it prefers
#define MOEFLUX_WIDE
#else
#define MOEFLUX_WIDE ",prefer-vector-width=512"
#endif
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl" MOEFLUX_WIDE))) void fit_avx512(
    const float* w, size_t n, int bits, uint8_t* codes, QuantisedGroup* out) {
  fit_any(w, n, bits, codes, out);
}

FitFn choose_fit() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return fit_avx512;
  return __builtin_cpu_supports("avx2") ? fit_avx2 : fit_plain;
}
#else
FitFn choose_fit() { return fit_plain; }
#endif

}  // namespace

QuantisedGroup quantise_affine(const float* w, size_t n, int bits, uint8_t* codes) {
  static const FitFn fit = choose_fit();
  QuantisedGroup out;
  fit(w, n, bits, codes, &out);
  return out;
}

uint8_t quantise_mxfp4(const float* w, uint8_t* codes, double* error) {
  float most = 0;
  for (size_t i = 0; i < 32; ++i) most = std::max(most, std::fabs(w[i]));
  if (most == 0) {
    std::fill_n(codes, 32, uint8_t{0});
    *error = 0;
    return 127;
  }
  // The largest value lands in [4, 8) of which 6 is the last code, or in [2, 4): the better of the two.
  const int exponent = std::clamp(std::ilogb(most) - 2, -126, 125);
  uint8_t other[32];
  const float tight = assign_mxfp4(w, std::ldexp(1.0f, exponent), codes);
  const float wide = assign_mxfp4(w, std::ldexp(1.0f, exponent + 1), other);
  if (wide < tight) std::copy_n(other, 32, codes);
  *error = std::min(tight, wide);
  return static_cast<uint8_t>(exponent + 127 + (wide < tight));
}

}  // namespace moeflux
