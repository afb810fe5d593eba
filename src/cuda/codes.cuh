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

  // Bytes of a row's scale.
  __device__ static uint32_t scale_bytes(const Tiles& m) {
    if constexpr (kScale == ScaleType::Bf16) return 2;
    if constexpr (kScale == ScaleType::E8m0) return 1;
    return static_cast<uint32_t>(m.group_bytes) / 16;
  }
  __device__ static ScaleType scale_type(const Tiles& m) {
    return kScale == ScaleType::None ? m.scale : kScale;
  }

  // at: the scale of the row's first group in this span.
  __device__ static Scales scales(const Tiles& m, const uint8_t* at) {
    Scales s;
    const uint32_t group_bytes = 16 * scale_bytes(m);
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      const float scale = scale_value(scale_type(m), at + g * group_bytes);
      s.scale[g] = affine ? scale : __fmul_rn(0.5f, scale);
      s.bias[g] = affine ? scale_value(scale_type(m), at + (groups + g) * group_bytes) : 0.0f;
    }
    return s;
  }

  // The same in two steps: bits that are under way, and what they mean.
  struct Requested {
    uint32_t scale[groups], bias[groups];
  };
  __device__ static Requested request(const Tiles& m, const uint8_t* at) {
    Requested r;
    const uint32_t group_bytes = 16 * scale_bytes(m);
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      r.scale[g] = request_scale(scale_type(m), at + g * group_bytes);
      r.bias[g] = affine ? request_scale(scale_type(m), at + (groups + g) * group_bytes) : 0;
    }
    return r;
  }
  __device__ static Scales scales(const Tiles& m, const Requested& r) {
    Scales s;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      const float scale = scale_of_bits(scale_type(m), r.scale[g]);
      s.scale[g] = affine ? scale : __fmul_rn(0.5f, scale);
      s.bias[g] = affine ? scale_of_bits(scale_type(m), r.bias[g]) : 0.0f;
    }
    return s;
  }

  // A row's words of a span may be shared by kSplit lanes, lane `part` of them holding words / kSplit.
  template <int kSplit>
  static constexpr int lane_words = words / kSplit;
  template <int kSplit>
  static constexpr int lane_codes = 16 / kSplit;  // words of int8 activations that go with them

  template <int kSplit>
  __device__ static void load_codes(const int8_t* q, uint32_t part, int (&x)[lane_codes<kSplit>]) {
    constexpr int kEach = lane_codes<kSplit> / 4;  // loads of four words
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      // Four-bit codes: words 4i and 8 + 4i go together; the parts of others are in order.
      const uint32_t at = words == 8 && kSplit == 2 ? part + 2 * i : part * kEach + i;
      const int4 four = reinterpret_cast<const int4*>(q)[at];
      x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
    }
  }

  // i[0], i[1]: sums over columns 0..31 and 32..63 of the whole row, in all lanes that share it.
  template <int kSplit>
  __device__ static void dot(const uint32_t (&w)[lane_words<kSplit>], const int (&x)[lane_codes<kSplit>],
                             uint32_t part, int (&i)[2]) {
    constexpr int kHalf = lane_codes<kSplit> / 2;
    i[0] = i[1] = 0;
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      if constexpr (kType == MatrixType::Affine4) {
        i[0] = __dp4a(static_cast<int>(w[j] & 0x0f0f0f0fu), x[j], i[0]);
        i[1] = dot4_unsigned(w[j] & 0xf0f0f0f0u, x[kHalf + j], i[1]);  // 16 times as much
      } else if constexpr (kType == MatrixType::Affine8) {
        i[0] = dot4_unsigned(w[j], x[j], i[0]);
        i[1] = dot4_unsigned(w[kHalf + j], x[kHalf + j], i[1]);
      } else {
        int low, high;
        e2m1_codes(w[j], low, high);
        i[0] = __dp4a(low, x[j], i[0]);
        i[1] = __dp4a(high, x[kHalf + j], i[1]);
      }
    }
    if constexpr (kType == MatrixType::Affine4) i[1] >>= 4;
    if constexpr (kSplit == 2) {
      if constexpr (!kHalves) {
        const int sum = i[0] + i[1];
        i[0] = sum + __shfl_xor_sync(0xffffffff, sum, 16);
        i[1] = 0;
      } else if constexpr (words == 8) {
        i[0] += __shfl_xor_sync(0xffffffff, i[0], 16);
        i[1] += __shfl_xor_sync(0xffffffff, i[1], 16);
      } else {  // a lane has all of one half
        const int mine = i[0] + i[1], other = __shfl_xor_sync(0xffffffff, mine, 16);
        i[0] = part ? other : mine;
        i[1] = part ? mine : other;
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

// Where the rows of a block have their spans. A tile holds one span or two.
struct BlockSpans {
  const uint8_t* data;
  uint32_t tile_bytes, span_bytes, scales_at, twice;  // twice: 1 where a tile holds two spans

  __device__ BlockSpans(const Tiles& m, size_t block)
      : data(m.data + block * m.n_tiles * m.tile_bytes),
        tile_bytes(static_cast<uint32_t>(m.tile_bytes)),
        span_bytes(static_cast<uint32_t>(m.span_bytes)),
        scales_at(static_cast<uint32_t>(m.scales_at)),
        twice(static_cast<uint32_t>(m.tile_spans) - 1) {}
  __device__ uint32_t tile_at(uint32_t s) const { return (s >> twice) * tile_bytes; }
  __device__ const uint8_t* codes(uint32_t s) const { return data + (tile_at(s) + (s & twice) * span_bytes); }
  __device__ const uint8_t* scales(uint32_t s) const { return data + (tile_at(s) + scales_at); }
};

}  // namespace moeflux::cuda
