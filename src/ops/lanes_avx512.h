// Sixteen lanes on AVX-512 (F, BW, DQ, VL, VNNI). Same names and meaning as in lanes_generic.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace moeflux::MOEFLUX_ISA {
namespace {

using F = __m512;
using I = __m512i;
using M = __mmask16;

inline F zero() { return _mm512_setzero_ps(); }
inline F set(float x) { return _mm512_set1_ps(x); }
inline I set_i(int32_t x) { return _mm512_set1_epi32(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline M first_lanes(size_t n) { return n >= 16 ? M(0xffff) : M((1u << n) - 1); }
inline F load_n(const float* p, size_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void store_n(float* p, size_t n, F x) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F abs(F a) { return _mm512_abs_ps(a); }
inline F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
inline M lanes_between(size_t begin, size_t end) { return M(first_lanes(end) & ~first_lanes(begin)); }
inline M equal(I a, I b) { return _mm512_cmpeq_epi32_mask(a, b); }

inline I to_int(F a) { return _mm512_cvtps_epi32(a); }
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline F as_float(I a) { return _mm512_castsi512_ps(a); }
inline I as_int(F a) { return _mm512_castps_si512(a); }
inline I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
inline I and_i(I a, I b) { return _mm512_and_si512(a, b); }
inline I or_i(I a, I b) { return _mm512_or_si512(a, b); }
template <int N>
inline I shl(I a) {
  return _mm512_slli_epi32(a, N);
}
template <int N>
inline I shr(I a) {
  return _mm512_srli_epi32(a, N);
}

inline I load_i(const void* p) { return _mm512_loadu_si512(p); }
inline I load_u16(const void* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline I load_u8(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline I load_i8(const void* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline void store_u16(void* p, I x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
}
inline void store_i8(void* p, I x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }

// Lane l + lane l+8, then +4, +2, +1.
inline float sum(F a) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline float largest(F a) { return _mm512_reduce_max_ps(a); }
inline int32_t sum_i(I a) { return _mm512_reduce_add_epi32(a); }

constexpr int kDotVectors = 4;
enum class Kind { U4, U8, Mx };

constexpr bool kHasDot4 = true;
constexpr size_t kMostFew = 8;  // vectors whose sums fit in the registers beside one row block

// Codes of one line, ready for dot4: of 4-bit codes the low or the high nibbles.
template <Kind K>
inline I unpack(I nibbles) {
  if constexpr (K != Kind::Mx) return nibbles;
  // Doubled E2M1 codes plus 12, so that they are unsigned.
  const I table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  return _mm512_shuffle_epi8(table, nibbles);
}
template <Kind K>
inline I low_codes(I both) {
  return unpack<K>(and_i(both, _mm512_set1_epi8(15)));
}
template <Kind K>
inline I high_codes(I both) {
  return unpack<K>(and_i(shr<4>(both), _mm512_set1_epi8(15)));
}
inline I byte_codes(I line) { return line; }

template <Kind K>
constexpr int32_t kCodeOffset = K == Kind::Mx ? -12 : 0;  // code = unpacked code + this

inline I dot4(I sums, I codes, I x) {
#if defined(__GNUC__) && !defined(__clang__)
  // With the intrinsic the compiler copies accumulators around in loops; written so, it adds in place.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(x));
  return sums;
#else
  return _mm512_dpbusd_epi32(sums, codes, x);
#endif
}

// The same with four bytes in memory for all lanes, which need no instruction and no register of their own.
inline I dot4(I sums, I codes, const int8_t* x) {
#if defined(__GNUC__) && !defined(__clang__)
  __asm__("vpdpbusd %2%{1to16%}, %1, %0"
          : "+v"(sums)
          : "v"(codes), "m"(*reinterpret_cast<const int8_t(*)[4]>(x)));
  return sums;
#else
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return dot4(sums, codes, set_i(four));
#endif
}

inline const uint8_t* after(I& x, const uint8_t* p) {
  __asm__("" : "+v"(x), "+r"(p));
  return p;
}

#if defined(__AVX512BF16__)
#define MOEFLUX_PAIRS 1

inline void store_i(void* p, I x) { _mm512_storeu_si512(p, x); }

// Sixteen floats, rounded to bf16, as eight pairs, the first of each in the high half.
inline void store_pairs(uint32_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_rol_epi32((__m256i)_mm512_cvtneps_pbh(x), 16));
}

// Lane i: word i + low in its low half, word i + high in its high half.
inline I word_order(uint32_t low, uint32_t high) {
  const I i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return or_i(add_i(i, set_i(static_cast<int32_t>(low))),
              shl<16>(add_i(i, set_i(static_cast<int32_t>(high)))));
}
// Pairs of word i and word 16 + i.
inline I pair_halves(I words) { return _mm512_permutexvar_epi16(word_order(16, 0), words); }
// Pairs of the words of two lines, the first 16 and the last.
inline void pair_lines(I first, I second, I* pairs) {
  pairs[0] = _mm512_permutex2var_epi16(first, word_order(32, 0), second);
  pairs[1] = _mm512_permutex2var_epi16(first, word_order(48, 16), second);
}

// The products of both halves of pairs, one after the other, high halves first: two fmas, except that numbers
// below the least normal one count as zero.
inline F dot2(F sums, I a, I b) {
#if defined(__GNUC__) && !defined(__clang__)
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));  // in place, as dot4
  return sums;
#else
  return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
#endif
}
#endif

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
