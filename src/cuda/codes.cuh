// Integer codes of a span of 64 columns: how kernels read a row's words, scales and biases, and the float
// steps that follow an integer product. One type per family of formats.
#pragma once

#include "cuda/numerics.cuh"

namespace moeflux::cuda {

struct Quantised {  // of vectors, as in Vectors
  const int8_t* q;
  const QuantSpan* span;
};

// kHalves: two groups of 32 columns in a span. kScale None: read from the matrix at run time.
template <MatrixType kType, bool kHalves, ScaleType kScale>
struct Codes {
  static constexpr MatrixType type = kType;
  static constexpr bool halves = kHalves;
  static constexpr bool affine = kType != MatrixType::Mxfp4;
  static constexpr int words = kType == MatrixType::Affine8 ? 16 : 8;  // of 4 bytes, per row and span
  static constexpr int groups = kHalves ? 2 : 1;

  struct Scales {
    float scale[groups], bias[groups];
  };

  __device__ static ScaleType scale_type(const Tiles& m) {
    return kScale == ScaleType::None ? m.scale : kScale;
  }

  // at: the scale of the row's first group in this span.
  __device__ static Scales scales(const Tiles& m, const uint8_t* at) {
    Scales s;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      const float scale = scale_value(scale_type(m), at + g * m.group_bytes);
      s.scale[g] = affine ? scale : __fmul_rn(0.5f, scale);
      s.bias[g] = affine ? scale_value(scale_type(m), at + g * m.group_bytes + m.bias_after) : 0.0f;
    }
    return s;
  }

  // i[0], i[1]: sums over columns 0..31 and 32..63; x: 16 words of int8.
  __device__ static void dot(const uint32_t (&w)[words], const int (&x)[16], int (&i)[2]) {
    i[0] = i[1] = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if constexpr (kType == MatrixType::Affine4) {
        i[0] = __dp4a(static_cast<int>(w[j] & 0x0f0f0f0fu), x[j], i[0]);
        i[1] = __dp4a(static_cast<int>(w[j] >> 4 & 0x0f0f0f0fu), x[8 + j], i[1]);
      } else if constexpr (kType == MatrixType::Affine8) {
        i[0] = dot4_unsigned(w[j], x[j], i[0]);
        i[1] = dot4_unsigned(w[8 + j], x[8 + j], i[1]);
      } else {
        int low, high;
        e2m1_codes(w[j], low, high);
        i[0] = __dp4a(low, x[j], i[0]);
        i[1] = __dp4a(high, x[8 + j], i[1]);
      }
    }
  }

  __device__ static float add(const Scales& s, const int (&i)[2], const QuantSpan& x, float c) {
    if constexpr (kHalves) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        c = __fmaf_rn(__fmul_rn(s.scale[g], x.xs), __int2float_rn(i[g]), c);
        if (affine) c = __fmaf_rn(s.bias[g], x.xb_half[g], c);
      }
    } else {
      c = __fmaf_rn(__fmul_rn(s.scale[0], x.xs), __int2float_rn(i[0] + i[1]), c);
      if (affine) c = __fmaf_rn(s.bias[0], x.xb, c);
    }
    return c;
  }
};

// Calls fn with the Codes of a format that has integer codes. The common one is known in full when kernels
// are compiled.
template <class Fn>
void with_codes(const MatrixFormat& f, Fn fn) {
  using enum MatrixType;
  constexpr ScaleType kAny = ScaleType::None;
  if (f.type == Mxfp4)
    fn(Codes<Mxfp4, true, ScaleType::E8m0>{});
  else if (f.type == Affine4 && f.group == 32)
    fn(Codes<Affine4, true, kAny>{});
  else if (f.type == Affine4 && f.scale == ScaleType::Bf16)
    fn(Codes<Affine4, false, ScaleType::Bf16>{});
  else if (f.type == Affine4)
    fn(Codes<Affine4, false, kAny>{});
  else if (f.group == 32)
    fn(Codes<Affine8, true, kAny>{});
  else
    fn(Codes<Affine8, false, kAny>{});
}

// Where row `row` of a block has its first word of span `s`, and its scale.
__device__ inline const uint8_t* span_codes(const Tiles& m, size_t block, uint32_t s, uint32_t row) {
  const uint32_t spans = static_cast<uint32_t>(m.tile_spans), tile = spans == 1 ? s : s / spans;
  return m.data + (block * m.n_tiles + tile) * m.tile_bytes + (s - tile * spans) * m.span_bytes + row * 4;
}
__device__ inline const uint8_t* span_scales(const Tiles& m, size_t block, uint32_t s, uint32_t row) {
  const uint32_t spans = static_cast<uint32_t>(m.tile_spans), tile = spans == 1 ? s : s / spans;
  const uint32_t bytes = static_cast<uint32_t>(m.group_bytes) / 16;
  return m.data + (block * m.n_tiles + tile) * m.tile_bytes + m.scales_at + row * bytes;
}

}  // namespace moeflux::cuda
