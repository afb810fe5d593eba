// Weights of tokens (token_weight.h) and the largest of blocks of logits on sixteen lanes. Included once per
// instruction set.
#pragma once

namespace moeflux::MOEFLUX_ISA {
namespace {

struct WeightLanes {
  I high, low;
};

inline WeightLanes weight_lanes(F x, const Weighing& w) {
  const F exponent = mul(sub(x, set(w.most)), set(w.inverse_temperature));
  const F clamped = max(exponent, set(kLeastExponent));
  const M counts = equal(as_int(clamped), as_int(exponent));
  const F scaled = select(counts, mul(exp_lanes(clamped), set(kHalfWeight)), zero());
  const I high = to_int(scaled);
  return {high, to_int(mul(sub(scaled, to_float(high)), set(kHalfWeight)))};
}

bool block_maxima(const float* x, size_t blocks, float* maxima) noexcept {
  F zeros = zero();  // becomes NaN where a value is not finite
  for (size_t b = 0; b < blocks; ++b, x += kLogitBlock) {
    F most = load(x);
    zeros = fma(most, zero(), zeros);
    for (size_t i = 16; i < kLogitBlock; i += 16) {
      const F v = load(x + i);
      zeros = fma(v, zero(), zeros);
      most = max(most, v);
    }
    maxima[b] = largest(most);
  }
  return sum(zeros) == 0;
}

void block_weights(const float* x, const float* maxima, size_t blocks, const Weighing& w,
                   uint64_t* sums) noexcept {
  for (size_t b = 0; b < blocks; ++b, x += kLogitBlock) {
    sums[b] = 0;
    if ((maxima[b] - w.most) * w.inverse_temperature < kLeastExponent) continue;
    WeightLanes s = weight_lanes(load(x), w);
    for (size_t i = 16; i < kLogitBlock; i += 16) {
      const WeightLanes v = weight_lanes(load(x + i), w);
      s = {add_i(s.high, v.high), add_i(s.low, v.low)};
    }
    sums[b] = static_cast<uint64_t>(static_cast<int64_t>(sum_i(s.high)) * (1 << 20) + sum_i(s.low));
  }
}

void token_weights(const float* x, size_t n, const Weighing& w, uint64_t* out) noexcept {
  for (size_t i = 0; i < n; i += 16) {
    const WeightLanes v = weight_lanes(load_n(x + i, n - i), w);
    int32_t high[16], low[16];
    __builtin_memcpy(high, &v.high, sizeof high);
    __builtin_memcpy(low, &v.low, sizeof low);
    for (size_t j = 0; j < 16 && i + j < n; ++j)
      out[i + j] = static_cast<uint64_t>(static_cast<int64_t>(high[j]) * (1 << 20) + low[j]);
  }
}

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
