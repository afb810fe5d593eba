#include "convert/quantise.h"

#include <algorithm>
#include <cmath>

#include "base/numbers.h"

namespace moeflux {
namespace {

#define MOEFLUX_INLINE __attribute__((always_inline)) inline

constexpr size_t kLanes = 16;

// Adding and taking away 1.5 * 2^23 rounds to the nearest even integer, in every vector width alike.
MOEFLUX_INLINE float round_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

MOEFLUX_INLINE float sum_lanes(float* lanes) {
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

struct Line {  // value = scale * code + bias
  float scale, bias;
};

struct Sums {
  float error, q, qq, wq;
};

// Codes for one line, and the sums that the next fit needs.
MOEFLUX_INLINE Sums assign(const float* w, size_t n, float levels, Line line, float* q) {
  const float inverse = line.scale != 0 ? 1.0f / line.scale : 0.0f;
  float e[kLanes] = {}, sq[kLanes] = {}, sqq[kLanes] = {}, swq[kLanes] = {};
  for (size_t i = 0; i < n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      float code = (w[i + l] - line.bias) * inverse;
      code = code < 0.0f ? 0.0f : code;
      code = code > levels ? levels : code;
      code = round_even(code);
      q[i + l] = code;
      const float difference = w[i + l] - (line.scale * code + line.bias);
      e[l] += difference * difference;
      sq[l] += code;
      sqq[l] += code * code;
      swq[l] += w[i + l] * code;
    }
  return {sum_lanes(e), sum_lanes(sq), sum_lanes(sqq), sum_lanes(swq)};
}

MOEFLUX_INLINE Line to_bf16(double scale, double bias) {
  return {bf16_to_float(float_to_bf16(static_cast<float>(scale))),
          bf16_to_float(float_to_bf16(static_cast<float>(bias)))};
}

MOEFLUX_INLINE void fit_affine(const float* w, size_t n, int bits, uint8_t* codes, QuantisedGroup* out) {
  const float levels = static_cast<float>((1 << bits) - 1);
  float low[kLanes], high[kLanes], sums[kLanes] = {};
  for (size_t l = 0; l < kLanes; ++l) low[l] = high[l] = w[l];
  for (size_t i = 0; i < n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      low[l] = w[i + l] < low[l] ? w[i + l] : low[l];
      high[l] = w[i + l] > high[l] ? w[i + l] : high[l];
      sums[l] += w[i + l];
    }
  const double sum = sum_lanes(sums), least = *std::min_element(low, low + kLanes),
               most = *std::max_element(high, high + kLanes);

  float q[128], best_q[128];
  Line best{};
  float best_error = INFINITY;
  // At 4 bits it pays to start inside the extremes as well; at 8 bits the extremes are right.
  const double shares[] = {1.0, 0.9, 0.8};
  for (int start = 0; start < (bits == 4 ? 3 : 1); ++start) {
    const double middle = (least + most) / 2, half = (most - least) / 2 * shares[start];
    Line line = to_bf16(2 * half / levels, middle - half);
    for (int round = 0; round < 3; ++round) {
      const Sums s = assign(w, n, levels, line, q);
      if (s.error < best_error) {
        best_error = s.error;
        best = line;
        for (size_t i = 0; i < n; ++i) best_q[i] = q[i];
      }
      const double m = static_cast<double>(n), determinant = m * s.qq - double{s.q} * s.q;
      if (determinant <= 0) break;
      const double scale = (m * s.wq - s.q * sum) / determinant;
      const Line next = to_bf16(scale, (sum - scale * s.q) / m);
      if (next.scale == line.scale && next.bias == line.bias) break;
      line = next;
    }
  }
  for (size_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(best_q[i]);
  *out = {float_to_bf16(best.scale), float_to_bf16(best.bias), best_error};
}

MOEFLUX_INLINE float assign_mxfp4(const float* w, float scale, uint8_t* codes) {
  const float inverse = 1.0f / scale;
  float error[kLanes] = {};
  for (size_t i = 0; i < 32; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      const float x = w[i + l] * inverse, a = std::fabs(x);
      const int code = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f);
      const float magnitude = code < 5 ? 0.5f * static_cast<float>(code) : static_cast<float>(code) * 2.0f - 8.0f;
      const float value = code == 5 ? 3.0f : magnitude;
      const float difference = std::fabs(w[i + l]) - value * scale;
      error[l] += difference * difference;
      codes[i + l] = static_cast<uint8_t>(code | (x < 0 ? 8 : 0));
    }
  return sum_lanes(error);
}

using FitFn = void (*)(const float*, size_t, int, uint8_t*, QuantisedGroup*);

void fit_plain(const float* w, size_t n, int bits, uint8_t* codes, QuantisedGroup* out) {
  fit_affine(w, n, bits, codes, out);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void fit_avx2(const float* w, size_t n, int bits, uint8_t* codes,
                                              QuantisedGroup* out) {
  fit_affine(w, n, bits, codes, out);
}
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) void fit_avx512(
    const float* w, size_t n, int bits, uint8_t* codes, QuantisedGroup* out) {
  fit_affine(w, n, bits, codes, out);
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
