// Sixteen lanes in plain C++, for processors without one of the instruction sets that have a file of their
// own, and the definition of what those files must do: every function works lane by lane in IEEE single
// precision, so that a kernel gives the same bits with each of them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace moeflux::MOEFLUX_ISA {
namespace {

struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};
struct M {
  bool v[16];
};

template <class Fn>
inline F each(Fn fn) {
  F r;
  for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
  return r;
}
template <class Fn>
inline I each_i(Fn fn) {
  I r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<int32_t>(fn(i));
  return r;
}

inline F set(float x) {
  return each([&](int) { return x; });
}
inline F zero() { return set(0); }
inline I set_i(int32_t x) {
  return each_i([&](int) { return x; });
}
inline F load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(float* p, F x) {
  for (int i = 0; i < 16; ++i) p[i] = x.v[i];
}
inline F load_n(const float* p, size_t n) {  // lanes from n on are zero; nothing is read there
  return each([&](int i) { return static_cast<size_t>(i) < n ? p[i] : 0.0f; });
}
inline void store_n(float* p, size_t n, F x) {
  for (size_t i = 0; i < n && i < 16; ++i) p[i] = x.v[i];
}

inline F add(F a, F b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F sub(F a, F b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F mul(F a, F b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F div(F a, F b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline F fma(F a, F b, F c) {
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline F max(F a, F b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F min(F a, F b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F abs(F a) {
  return each([&](int i) { return __builtin_fabsf(a.v[i]); });
}
inline F select(M m, F yes, F no) {
  return each([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
inline M lanes_between(size_t begin, size_t end) {  // lanes [begin, end)
  M m;
  for (size_t i = 0; i < 16; ++i) m.v[i] = i >= begin && i < end;
  return m;
}
inline M equal(I a, I b) {
  M m;
  for (int i = 0; i < 16; ++i) m.v[i] = a.v[i] == b.v[i];
  return m;
}

inline I to_int(F a) {  // to nearest, ties to even
  return each_i([&](int i) { return __builtin_nearbyintf(a.v[i]); });
}
inline F to_float(I a) {
  return each([&](int i) { return static_cast<float>(a.v[i]); });
}
inline F as_float(I a) {
  F r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
inline I as_int(F a) {
  I r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
inline I add_i(I a, I b) {
  return each_i([&](int i) { return a.v[i] + b.v[i]; });
}
inline I and_i(I a, I b) {
  return each_i([&](int i) { return a.v[i] & b.v[i]; });
}
inline I or_i(I a, I b) {
  return each_i([&](int i) { return a.v[i] | b.v[i]; });
}
template <int N>
inline I shl(I a) {
  return each_i([&](int i) { return static_cast<uint32_t>(a.v[i]) << N; });
}
template <int N>
inline I shr(I a) {  // logical
  return each_i([&](int i) { return static_cast<uint32_t>(a.v[i]) >> N; });
}

inline I load_i(const void* p) {
  I r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
inline I load_u16(const void* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  return each_i([&](int i) { return h[i]; });
}
inline I load_u8(const void* p) {
  return each_i([&](int i) { return static_cast<const uint8_t*>(p)[i]; });
}
inline I load_i8(const void* p) {
  return each_i([&](int i) { return static_cast<const int8_t*>(p)[i]; });
}
inline void store_u16(void* p, I x) {
  uint16_t h[16];
  for (int i = 0; i < 16; ++i) h[i] = static_cast<uint16_t>(x.v[i]);
  __builtin_memcpy(p, h, sizeof h);
}
inline void store_i8(void* p, I x) {
  for (int i = 0; i < 16; ++i) static_cast<int8_t*>(p)[i] = static_cast<int8_t>(x.v[i]);
}

inline float sum(F a) {  // lane l + lane l+8, then +4, +2, +1
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  return a.v[0];
}
inline float largest(F a) {
  for (int i = 1; i < 16; ++i) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
  return a.v[0];
}
inline int32_t sum_i(I a) {
  for (int i = 1; i < 16; ++i) a.v[0] += a.v[i];
  return a.v[0];
}

// A tile holds 64 columns of every row as 16 lines of 4 bytes per row: line j has columns 4j..4j+3. Codes of
// 4 bits share a line: columns 4j.. in the low nibbles, 32 + 4j.. in the high ones.
constexpr int kDotVectors = 1;   // vectors whose sums fit in the registers beside four row blocks
enum class Kind { U4, U8, Mx };  // 4-bit and 8-bit unsigned codes; doubled E2M1 codes

// Where there is an instruction that multiplies four bytes of a lane and adds the products to it, dot4 is
// that; elsewhere dot_lines does it for several lines at once.
constexpr bool kHasDot4 = false;
constexpr size_t kMostFew = 1;
// p, once x is in a register: keeps a compiler from gathering what is to be spread over a loop, and from
// loading x again for everything that uses it.
inline const uint8_t* after(I&, const uint8_t* p) { return p; }
template <Kind K>
constexpr int32_t kCodeOffset = 0;  // code = unpacked code + this

inline I byte_codes(I line) { return line; }
template <Kind K>
inline I low_codes(I both) {
  I r = and_i(both, set_i(0x0f0f0f0f));
  if constexpr (K == Kind::Mx) {
    constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int8_t b[64];
    __builtin_memcpy(b, &r, 64);
    for (int8_t& x : b) x = kDoubled[x];
    __builtin_memcpy(&r, b, 64);
  }
  return r;
}
template <Kind K>
inline I high_codes(I both) {
  return low_codes<K>(shr<4>(both));
}

template <Kind K, int Lines>
inline I dot_lines(const I* line, const int8_t* q) {
  I r = set_i(0);
  for (int j = 0; j < Lines; ++j) {
    uint8_t b[64];
    __builtin_memcpy(b, &line[j], 64);
    for (int i = 0; i < 64; ++i)
      r.v[i / 4] += (K == Kind::U8 ? int{b[i]} : int{static_cast<int8_t>(b[i])}) * q[4 * j + i % 4];
  }
  return r;
}
}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
