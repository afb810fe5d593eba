// Sixteen lanes as two registers of AVX2 with FMA; integer dot products by AVX-VNNI where the file that
// includes this is built for it. Same names and meaning as in lanes_generic.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace moeflux::MOEFLUX_ISA {
namespace {

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct M {
  __m256 a, b;
};

inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline I set_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline M lanes_between(size_t begin, size_t end) {
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
  const __m256i b = _mm256_set1_epi32(static_cast<int>(begin < 16 ? begin : 16) - 1),
                e = _mm256_set1_epi32(static_cast<int>(end < 16 ? end : 16));
  const auto in = [&](__m256i l) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(l, b), _mm256_cmpgt_epi32(e, l)));
  };
  return {in(low), in(high)};
}
inline F load_n(const float* p, size_t n) {
  if (n >= 16) return load(p);
  const M m = lanes_between(0, n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b))};
}
inline void store_n(float* p, size_t n, F x) {
  if (n >= 16) return store(p, x);
  const M m = lanes_between(0, n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}

inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F select(M m, F yes, F no) {
  return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
inline M equal(I x, I y) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b))};
}

inline I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline F as_float(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline I as_int(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline I add_i(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I and_i(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I or_i(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int N>
inline I shl(I x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
inline I shr(I x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}

inline I load_i(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline I load_u16(const void* p) {
  const auto* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
inline I load_u8(const void* p) {
  const __m128i q = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(q), _mm256_cvtepu8_epi32(_mm_srli_si128(q, 8))};
}
inline I load_i8(const void* p) {
  const __m128i q = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(q), _mm256_cvtepi8_epi32(_mm_srli_si128(q, 8))};
}
inline __m256i low_halves(I x) {  // the low 16 bits of the 16 lanes, in order
  const __m256i m = _mm256_set1_epi32(0xffff);
  const __m256i p = _mm256_packus_epi32(_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m));
  return _mm256_permute4x64_epi64(p, 0xd8);
}
inline void store_u16(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), low_halves(x)); }
inline void store_i8(void* p, I x) {
  const __m256i h = _mm256_and_si256(low_halves(x), _mm256_set1_epi16(255));
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

inline float sum(F x) {
  const __m256 h = _mm256_add_ps(x.a, x.b);
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline float largest(F x) {
  const __m256 h = _mm256_max_ps(x.a, x.b);
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
inline int32_t sum_i(I x) {
  const __m256i h = _mm256_add_epi32(x.a, x.b);
  const __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  const __m128i d = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xb1)));
}

constexpr int kDotVectors = 1;  // vectors whose sums fit in the registers beside four row blocks
enum class Kind { U4, U8, Mx };

template <Kind K>
inline I unpack(I nibbles) {
  if constexpr (K != Kind::Mx) return nibbles;
  // Doubled E2M1 codes plus 12, so that they are unsigned.
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  return {_mm256_shuffle_epi8(table, nibbles.a), _mm256_shuffle_epi8(table, nibbles.b)};
}
template <Kind K>
inline I low_codes(I both) {
  return unpack<K>(and_i(both, set_i(0x0f0f0f0f)));
}
template <Kind K>
inline I high_codes(I both) {
  return unpack<K>(and_i(shr<4>(both), set_i(0x0f0f0f0f)));
}
inline I byte_codes(I line) { return line; }

template <Kind K>
constexpr int32_t kCodeOffset = K == Kind::Mx ? -12 : 0;

inline const uint8_t* after(I& x, const uint8_t* p) {
  __asm__("" : "+x"(x.a), "+r"(p));
  return p;
}

inline __m256i broadcast_word(const int8_t* q) {
  int32_t w;
  __builtin_memcpy(&w, q, 4);
  return _mm256_set1_epi32(w);
}

#if defined(__AVXVNNI__)
constexpr bool kHasDot4 = true;
constexpr size_t kMostFew = 2;  // vectors whose sums fit in the registers beside one row block
inline I dot4(I sums, I codes, I x) {
  return {_mm256_dpbusd_avx_epi32(sums.a, codes.a, x.a), _mm256_dpbusd_avx_epi32(sums.b, codes.b, x.b)};
}
inline I dot4(I sums, I codes, const int8_t* x) {
  const __m256i four = broadcast_word(x);
  return dot4(sums, codes, I{four, four});
}
#else
constexpr bool kHasDot4 = false;
constexpr size_t kMostFew = 1;

// The sum of code * q over `Lines` lines of unpacked codes.
template <Kind K, int Lines>
inline I dot_lines(const I* line, const int8_t* q) {
  I r = set_i(0);
  if constexpr (K == Kind::U8) {
    // Pairs of 8-bit products do not fit in 16 bits: even and odd bytes are multiplied as 16-bit numbers.
    const __m256i even = _mm256_set1_epi16(255);
    for (int j = 0; j < Lines; ++j) {
      const __m256i x = broadcast_word(q + 4 * j);
      const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), x_odd = _mm256_srai_epi16(x, 8);
      const auto products = [&](__m256i w) {
        return _mm256_add_epi32(_mm256_madd_epi16(_mm256_and_si256(w, even), x_even),
                                _mm256_madd_epi16(_mm256_srli_epi16(w, 8), x_odd));
      };
      r = add_i(r, {products(line[j].a), products(line[j].b)});
    }
  } else {
    // Sums of pairs are at most 2*15*127 (doubled E2M1: 2*24*127): eight (four) of them fit in 16 bits.
    const __m256i ones = _mm256_set1_epi16(1);
    constexpr int kStep = K == Kind::U4 ? 8 : 4;
    for (int at = 0; at < Lines; at += kStep) {
      I s = set_i(0);
      for (int j = at; j < at + kStep; ++j) {
        const __m256i x = broadcast_word(q + 4 * j);
        s = {_mm256_add_epi16(s.a, _mm256_maddubs_epi16(line[j].a, x)),
             _mm256_add_epi16(s.b, _mm256_maddubs_epi16(line[j].b, x))};
      }
      r = add_i(r, {_mm256_madd_epi16(s.a, ones), _mm256_madd_epi16(s.b, ones)});
    }
  }
  return r;
}
#endif

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
