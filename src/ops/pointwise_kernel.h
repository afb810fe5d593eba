// Norms and activations of pointwise.h on sixteen lanes. Included once per instruction set.
#pragma once

namespace moeflux::MOEFLUX_ISA {
namespace {

inline F exp_lanes(F x) {
  x = min(max(x, set(kExpLow)), set(kExpHigh));
  const I whole = to_int(mul(x, set(kLog2E)));
  const F n = to_float(whole), r = fma(n, set(-kLn2Low), fma(n, set(-kLn2High), x));
  F p = set(kExpTerms[0]);
  for (int i = 1; i < 8; ++i) p = fma(p, r, set(kExpTerms[i]));
  return mul(p, as_float(shl<23>(add_i(whole, set_i(127)))));
}

inline F one_plus_exp(F x) { return add(set(1), exp_lanes(sub(zero(), x))); }
inline F silu_lanes(F x) { return div(x, one_plus_exp(x)); }
inline F sigmoid_lanes(F x) { return div(set(1), one_plus_exp(x)); }

inline float square_sum(const float* x, size_t n) {
  F s = zero();
  for (size_t i = 0; i < n; i += 16) {
    const F v = load_n(x + i, n - i);
    s = add(s, mul(v, v));
  }
  return sum(s);
}

void rms_norm(const float* x, const float* w, size_t n, float eps, float* out) noexcept {
  const float mean = square_sum(x, n) / static_cast<float>(n);
  const F inverse = set(1.0f / __builtin_sqrtf(mean + eps));
  for (size_t i = 0; i < n; i += 16)
    store_n(out + i, n - i, mul(load_n(w + i, n - i), mul(load_n(x + i, n - i), inverse)));
}

void scale_to_length(float* x, size_t n, float eps, float length) noexcept {
  const F inverse = set(1.0f / __builtin_sqrtf(square_sum(x, n) + eps));
  for (size_t i = 0; i < n; i += 16)
    store_n(x + i, n - i, mul(mul(load_n(x + i, n - i), inverse), set(length)));
}

void swiglu(const float* gate, const float* up, size_t n, float* out) noexcept {
  for (size_t i = 0; i < n; i += 16)
    store_n(out + i, n - i, mul(silu_lanes(load_n(gate + i, n - i)), load_n(up + i, n - i)));
}

void clamped_swiglu(const float* gate, const float* up, size_t n, float limit, float* out) noexcept {
  for (size_t i = 0; i < n; i += 16) {
    const F g = min(load_n(gate + i, n - i), set(limit)),
            u = min(max(load_n(up + i, n - i), set(-limit)), set(limit));
    store_n(out + i, n - i, mul(add(u, set(1)), mul(g, sigmoid_lanes(mul(set(1.702f), g)))));
  }
}

void sigmoid_gate(const float* gate, size_t n, float* x) noexcept {
  for (size_t i = 0; i < n; i += 16)
    store_n(x + i, n - i, mul(load_n(x + i, n - i), sigmoid_lanes(load_n(gate + i, n - i))));
}

void silu_gate(const float* gate, size_t n, float* x) noexcept {
  for (size_t i = 0; i < n; i += 16)
    store_n(x + i, n - i, mul(load_n(x + i, n - i), silu_lanes(load_n(gate + i, n - i))));
}

void add_scaled(const float* x, float factor, size_t n, float* total) noexcept {
  for (size_t i = 0; i < n; i += 16)
    store_n(total + i, n - i, fma(set(factor), load_n(x + i, n - i), load_n(total + i, n - i)));
}

void conv_silu(const float* const* rows, const float* taps, size_t stride, size_t width, size_t n,
               float* y) noexcept {
  for (size_t i = 0; i < n; i += 16) {
    F s = zero();
    for (size_t j = 0; j < width; ++j)
      s = add(s, mul(load_n(taps + j * stride + i, n - i), load_n(rows[j] + i, n - i)));
    store_n(y + i, n - i, silu_lanes(s));
  }
}

// Independent chains that stay in registers: what the multipliers do when nothing else is in the way.
void peak_float(size_t rounds) noexcept {
  F c[8];
  for (int i = 0; i < 8; ++i) c[i] = set(static_cast<float>(i));
  const F a = set(0.5f), b = set(0.25f);
  for (size_t r = 0; r < rounds; ++r)
    for (int k = 0; k < 16; ++k)
      for (int i = 0; i < 8; ++i) c[i] = fma(c[i], a, b);
  float out[16];
  for (int i = 1; i < 8; ++i) c[0] = add(c[0], c[i]);
  store(out, c[0]);
  __asm__ volatile("" : : "r"(out) : "memory");
}

void peak_int8(size_t rounds) noexcept {
  alignas(64) uint8_t bytes[1024];
  alignas(64) int8_t q[8][64];
  for (int i = 0; i < 1024; ++i) bytes[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 512; ++i) q[i / 64][i % 64] = static_cast<int8_t>(i);
  Codes codes[4];
  for (Codes& c : codes) load_codes<Kind::U4>(bytes, c);
  const int8_t* vectors[4] = {q[0], q[1], q[2], q[3]};
  I total = set_i(0), sums[4][4];
  for (size_t r = 0; r < rounds; r += 2) {  // 16 dot products of 64 for 16 rows: two rounds
    __asm__ volatile("" : : "r"(q), "r"(codes) : "memory");
    dot_block<Kind::U4, 16, 4, 4>(codes, 0, vectors, sums);
    for (const auto& row : sums)
      for (const I s : row) total = add_i(total, s);
  }
  float out[16];
  store(out, as_float(total));
  __asm__ volatile("" : : "r"(out) : "memory");
}

template <size_t Streams>
inline void read_streams(const uint8_t* p, size_t bytes) {
  const size_t part = bytes / Streams / 64 * 64;
  I s[Streams];
  for (I& sum : s) sum = set_i(0);
  for (size_t at = 0; at < part; at += 64)
    for (size_t i = 0; i < Streams; ++i) {
      if constexpr (Streams == 1) ask_for(p + at + ahead_bytes(1));  // as products do
      s[i] = or_i(s[i], load_i(p + i * part + at));
    }
  float out[16];
  for (size_t i = 1; i < Streams; ++i) s[0] = or_i(s[0], s[i]);
  store(out, as_float(s[0]));
  __asm__ volatile("" : : "r"(out) : "memory");
}

void read_memory(const void* data, size_t bytes, size_t streams) noexcept {
  const auto* p = static_cast<const uint8_t*>(data);
  streams == 1   ? read_streams<1>(p, bytes)
  : streams == 2 ? read_streams<2>(p, bytes)
                 : read_streams<4>(p, bytes);
}

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
