// Sixteen lanes as four NEON registers, with the dot-product extension (ARMv8.2). Same names and meaning as
// in lanes_generic.h.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace moeflux::MOEFLUX_ISA {
namespace {

struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
struct M {
  uint32x4_t v[4];
};

template <class Fn>
inline F each(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}
template <class Fn>
inline I each_i(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}

inline F set(float x) {
  return each([&](int) { return vdupq_n_f32(x); });
}
inline F zero() { return set(0); }
inline I set_i(int32_t x) {
  return each_i([&](int) { return vdupq_n_s32(x); });
}
inline F load(const float* p) {
  return each([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, F x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
inline F load_n(const float* p, size_t n) {
  if (n >= 16) return load(p);
  float all[16] = {};
  for (size_t i = 0; i < n; ++i) all[i] = p[i];
  return load(all);
}
inline void store_n(float* p, size_t n, F x) {
  if (n >= 16) return store(p, x);
  float all[16];
  store(all, x);
  for (size_t i = 0; i < n; ++i) p[i] = all[i];
}

inline F add(F a, F b) {
  return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F sub(F a, F b) {
  return each([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline F mul(F a, F b) {
  return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F div(F a, F b) {
  return each([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline F fma(F a, F b, F c) {
  return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// A comparison that a NaN fails gives b; vmaxq and vminq would give the NaN.
inline F max(F a, F b) {
  return each([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F min(F a, F b) {
  return each([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F abs(F a) {
  return each([&](int i) { return vabsq_f32(a.v[i]); });
}
inline F select(M m, F yes, F no) {
  return each([&](int i) { return vbslq_f32(m.v[i], yes.v[i], no.v[i]); });
}
inline M lanes_between(size_t begin, size_t end) {
  const uint32_t count[4] = {0, 1, 2, 3};
  const uint32x4_t low = vld1q_u32(count), b = vdupq_n_u32(static_cast<uint32_t>(begin < 16 ? begin : 16)),
                   e = vdupq_n_u32(static_cast<uint32_t>(end < 16 ? end : 16));
  M m;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32x4_t lane = vaddq_u32(low, vdupq_n_u32(4 * i));
    m.v[i] = vandq_u32(vcgeq_u32(lane, b), vcltq_u32(lane, e));
  }
  return m;
}
inline M equal(I a, I b) {
  M m;
  for (int i = 0; i < 4; ++i) m.v[i] = vceqq_s32(a.v[i], b.v[i]);
  return m;
}

inline I to_int(F a) {
  return each_i([&](int i) { return vcvtnq_s32_f32(a.v[i]); });
}
inline F to_float(I a) {
  return each([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
inline F as_float(I a) {
  return each([&](int i) { return vreinterpretq_f32_s32(a.v[i]); });
}
inline I as_int(F a) {
  return each_i([&](int i) { return vreinterpretq_s32_f32(a.v[i]); });
}
inline I add_i(I a, I b) {
  return each_i([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
inline I and_i(I a, I b) {
  return each_i([&](int i) { return vandq_s32(a.v[i], b.v[i]); });
}
inline I or_i(I a, I b) {
  return each_i([&](int i) { return vorrq_s32(a.v[i], b.v[i]); });
}
template <int N>
inline I shl(I a) {
  return each_i([&](int i) { return vshlq_n_s32(a.v[i], N); });
}
template <int N>
inline I shr(I a) {
  if constexpr (N == 0)
    return a;  // the instruction shifts by one at least
  else
    return each_i(
        [&](int i) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), N)); });
}

inline I load_i(const void* p) {
  const auto* q = static_cast<const uint8_t*>(p);
  return each_i([&](int i) { return vreinterpretq_s32_u8(vld1q_u8(q + 16 * i)); });
}
inline I load_u16(const void* p) {
  const auto* q = static_cast<const uint8_t*>(p);
  const uint16x8_t a = vreinterpretq_u16_u8(vld1q_u8(q)), b = vreinterpretq_u16_u8(vld1q_u8(q + 16));
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(a))), vreinterpretq_s32_u32(vmovl_high_u16(a)),
           vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(b))), vreinterpretq_s32_u32(vmovl_high_u16(b))}};
}
inline I load_u8(const void* p) {
  const uint8x16_t q = vld1q_u8(static_cast<const uint8_t*>(p));
  const uint16x8_t a = vmovl_u8(vget_low_u8(q)), b = vmovl_high_u8(q);
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(a))), vreinterpretq_s32_u32(vmovl_high_u16(a)),
           vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(b))), vreinterpretq_s32_u32(vmovl_high_u16(b))}};
}
inline I load_i8(const void* p) {
  const int8x16_t q = vld1q_s8(static_cast<const int8_t*>(p));
  const int16x8_t a = vmovl_s8(vget_low_s8(q)), b = vmovl_high_s8(q);
  return {{vmovl_s16(vget_low_s16(a)), vmovl_high_s16(a), vmovl_s16(vget_low_s16(b)), vmovl_high_s16(b)}};
}
inline int16x8_t low_halves(int32x4_t a, int32x4_t b) { return vcombine_s16(vmovn_s32(a), vmovn_s32(b)); }
inline void store_u16(void* p, I x) {
  auto* q = static_cast<uint8_t*>(p);
  vst1q_u8(q, vreinterpretq_u8_s16(low_halves(x.v[0], x.v[1])));
  vst1q_u8(q + 16, vreinterpretq_u8_s16(low_halves(x.v[2], x.v[3])));
}
inline void store_i8(void* p, I x) {
  const int8x8_t a = vmovn_s16(low_halves(x.v[0], x.v[1])), b = vmovn_s16(low_halves(x.v[2], x.v[3]));
  vst1q_s8(static_cast<int8_t*>(p), vcombine_s8(a, b));
}

inline float sum(F a) {
  const float32x4_t q = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t d = vadd_f32(vget_low_f32(q), vget_high_f32(q));
  return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
inline float largest(F a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
inline int32_t sum_i(I a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}

constexpr int kDotVectors = 1;  // vectors whose sums fit in the registers beside four row blocks
enum class Kind { U4, U8, Mx };
constexpr bool kHasDot4 = true;
constexpr size_t kMostFew = 2;  // vectors whose sums fit in the registers beside one row block

template <class Fn>
inline I each_byte(I x, Fn fn) {
  return each_i([&](int i) { return vreinterpretq_s32_u8(fn(vreinterpretq_u8_s32(x.v[i]))); });
}
template <Kind K>
inline I unpack(I nibbles) {
  if constexpr (K != Kind::Mx) return nibbles;
  const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const uint8x16_t table = vreinterpretq_u8_s8(vld1q_s8(doubled));
  return each_byte(nibbles, [&](uint8x16_t b) { return vqtbl1q_u8(table, b); });
}
template <Kind K>
inline I low_codes(I both) {
  return unpack<K>(each_byte(both, [](uint8x16_t b) { return vandq_u8(b, vdupq_n_u8(15)); }));
}
template <Kind K>
inline I high_codes(I both) {
  return unpack<K>(each_byte(both, [](uint8x16_t b) { return vshrq_n_u8(b, 4); }));
}
inline I byte_codes(I line) {  // less 128, so that they are signed
  return each_byte(line, [](uint8x16_t b) { return veorq_u8(b, vdupq_n_u8(128)); });
}

template <Kind K>
constexpr int32_t kCodeOffset = K == Kind::U8 ? 128 : 0;

inline const uint8_t* after(I& x, const uint8_t* p) {
  __asm__("" : "+w"(x.v[0]), "+r"(p));
  return p;
}

inline I dot4(I sums, I codes, I x) {
  return each_i([&](int i) {
    return vdotq_s32(sums.v[i], vreinterpretq_s8_s32(codes.v[i]), vreinterpretq_s8_s32(x.v[i]));
  });
}
inline I dot4(I sums, I codes, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return dot4(sums, codes, set_i(four));
}

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
