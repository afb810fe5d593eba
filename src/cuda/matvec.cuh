// A row block of 16 rows times a few vectors: the loops that products and experts share.
//
// fast: half a warp or a warp owns one chain of the contract and one lane or two of it one row, so that
// little is exchanged before the sums are complete. exact: 16 sums per row, columns congruent mod 16; a line
// of 64 bytes holds kWide columns of 16 rows, so that a thread owns one row and kWide neighbouring sums.
#pragma once

#include <type_traits>

#include "cuda/codes.cuh"

namespace moeflux::cuda {

template <int n>
__device__ inline void load_words(const uint8_t* at, uint32_t (&w)[n]) {
#pragma unroll
  for (int j = 0; j < n; ++j)
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(w[j]) : "l"(at + 64 * j));
}

// A vector's int8 form in shared memory: spans * 64 codes, then the spans; copied by n threads, of which this
// is number `thread`.
constexpr size_t staged_bytes(size_t spans) { return spans * (64 + sizeof(QuantSpan)); }
__device__ inline Quantised staged(void* memory, uint32_t spans) {
  auto* q = static_cast<int8_t*>(memory);
  return {q, reinterpret_cast<const QuantSpan*>(q + spans * 64)};
}
__device__ inline void stage(const Quantised& x, size_t vector, uint32_t spans, void* memory, uint32_t thread,
                             uint32_t n) {
  const int4 *q = reinterpret_cast<const int4*>(x.q + vector * spans * 64),
             *span = reinterpret_cast<const int4*>(x.span + vector * spans);
  int4* to = static_cast<int4*>(memory);
#pragma unroll 2
  for (uint32_t i = thread; i < 5 * spans; i += n) to[i] = i < 4 * spans ? q[i] : span[i - 4 * spans];
}
__device__ inline void stage(const Quantised& x, size_t vector, uint32_t spans, void* memory) {
  stage(x, vector, spans, memory, threadIdx.x, blockDim.x);
}

// The same in two steps: what a thread copies first is on its way when this has been made.
class FirstStaged {
 public:
  __device__ FirstStaged(const Quantised& x, size_t vector, uint32_t spans) {
    if (threadIdx.x < 5 * spans) first_ = *from(x, vector, spans, threadIdx.x);
  }
  __device__ void finish(const Quantised& x, size_t vector, uint32_t spans, void* memory) const {
    int4* to = static_cast<int4*>(memory);
    if (threadIdx.x < 5 * spans) to[threadIdx.x] = first_;
#pragma unroll 1
    for (uint32_t i = threadIdx.x + blockDim.x; i < 5 * spans; i += blockDim.x)
      to[i] = *from(x, vector, spans, i);
  }

 private:
  __device__ static const int4* from(const Quantised& x, size_t vector, uint32_t spans, uint32_t i) {
    return i < 4 * spans ? reinterpret_cast<const int4*>(x.q + vector * spans * 64) + i
                         : reinterpret_cast<const int4*>(x.span + vector * spans) + (i - 4 * spans);
  }
  int4 first_;
};

// c[k][v] = the chain of row `row` of block at[k] for the vector at x[v]; the blocks are of matrices of one
// format and width, m is one of them. kSplit lanes, 16 apart, share a row. kAhead spans are requested before
// the first is used. ready() is called once, by all threads, after the first requests; x may become valid
// there.
template <class C, int kSplit, int kAhead, int kBlocks, int kVectors, class Ready>
__device__ void chain_sums(const Tiles& m, const BlockSpans (&at)[kBlocks], uint32_t row, uint32_t part,
                           uint32_t chain, const Quantised (&x)[kVectors], Ready ready,
                           float (&c)[kBlocks][kVectors]) {
  constexpr int kWords = C::template lane_words<kSplit>;
  const uint32_t spans = static_cast<uint32_t>((m.cols + 63) / 64);
#pragma unroll
  for (int i = 0; i < kBlocks * kVectors; ++i) c[i / kVectors][i % kVectors] = 0;
  for (uint32_t begin = chain; begin == chain || begin < spans; begin += 8 * kAhead) {
    uint32_t w[kAhead][kBlocks][kWords];
    typename C::Requested scales[kAhead][kBlocks];
    const auto load = [&](int i) {
      const uint32_t s = begin + 8 * i;
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) {
        load_words(at[k].codes(s) + (row * 4 + part * kWords * 64), w[i][k]);
        scales[i][k] = C::request(m, at[k].scales(s) + row * C::scale_bytes(m));
      }
    };
    const auto use = [&](int i) {
      const uint32_t s = begin + 8 * i;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        int codes[C::template lane_codes<kSplit>], dots[2];
        C::template load_codes<kSplit>(x[v].q + s * 64, part, codes);
        const QuantSpan span = x[v].span[s];
#pragma unroll
        for (int k = 0; k < kBlocks; ++k) {
          C::template dot<kSplit>(w[i][k], codes, part, dots);
          c[k][v] = C::add(C::scales(m, scales[i][k]), dots, span, c[k][v]);
        }
      }
    };
    const bool whole = begin + 8 * (kAhead - 1) < spans;  // without branches between the spans
    if (whole) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) load(i);
    } else {
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (begin + 8 * i < spans) load(i);
    }
    if (begin == chain) ready();
    if (whole) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) use(i);
    } else {
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (begin + 8 * i < spans) use(i);
    }
  }
}

__device__ inline float chain_tree(const float (&c)[8][16], uint32_t row) {
  const auto e = [&](int k) { return __fadd_rn(c[k][row], c[k + 4][row]); };
  return __fadd_rn(__fadd_rn(e(0), e(2)), __fadd_rn(e(1), e(3)));
}

template <MatrixType kType>
inline constexpr int kWide = kType == MatrixType::F32                                ? 1
                             : kType == MatrixType::F16 || kType == MatrixType::Bf16 ? 2
                                                                                     : 4;

// Columns 16 i + kWide * phase + b of span s, for i < 4 and b < kWide, decoded.
template <MatrixType kType>
__device__ void decode_span(const Tiles& m, size_t block, uint32_t s, uint32_t row, uint32_t phase,
                            float (&out)[4][kWide<kType>]) {
  const uint32_t spans = static_cast<uint32_t>(m.tile_spans), tile = s / spans;
  const uint8_t* at = m.data + (block * m.n_tiles + tile) * m.tile_bytes;
  const uint8_t* codes = at + (s % spans) * m.span_bytes + row * 4 + phase * 64;
  const auto word = [&](int i) {
    return __ldg(reinterpret_cast<const uint32_t*>(codes + i * (64 * 16 / kWide<kType>)));
  };
  if constexpr (kType == MatrixType::F32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i][0] = __uint_as_float(word(i));
  } else if constexpr (kType == MatrixType::Bf16 || kType == MatrixType::F16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t w = word(i);
      out[i][0] = kType == MatrixType::Bf16 ? bf16_value(w & 0xffff) : f16_value(static_cast<uint16_t>(w));
      out[i][1] = kType == MatrixType::Bf16 ? __uint_as_float(w & 0xffff0000u)
                                            : f16_value(static_cast<uint16_t>(w >> 16));
    }
  } else {
    constexpr bool kFour = kType == MatrixType::Affine4 || kType == MatrixType::Mxfp4;
    const uint8_t* scales = at + m.scales_at + row * (m.group_bytes / 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* place = scales + (m.group == 32 ? i / 2 * m.group_bytes : 0);
      const float scale = scale_value(m.scale, place);
      const float bias = kType == MatrixType::Affine4 || kType == MatrixType::Affine8
                             ? scale_value(m.scale, place + m.bias_after)
                             : 0.0f;
      const uint32_t w = kFour ? word(i % 2) >> (i / 2 * 4) : word(i);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const uint32_t code = w >> (8 * b) & (kFour ? 15 : 255);
        if constexpr (kType == MatrixType::Mxfp4)
          out[i][b] = __fmul_rn(e2m1_value(code), scale);
        else if constexpr (kType == MatrixType::Fp8)
          out[i][b] = __fmul_rn(e4m3_value(code), scale);
        else
          out[i][b] = __fadd_rn(__fmul_rn(scale, static_cast<float>(code)), bias);
      }
    }
  }
}

// One value of a word of a plain format.
template <MatrixType kType>
__device__ float plain_value(uint32_t word, uint32_t which) {
  if constexpr (kType == MatrixType::F32) return __uint_as_float(word);
  const uint32_t half = which ? word >> 16 : word & 0xffff;
  return kType == MatrixType::Bf16 ? bf16_value(half) : f16_value(static_cast<uint16_t>(half));
}

// c[v][b] = sum kWide * phase + b of row `row` of the block for vector x[v].
template <MatrixType kType, int kVectors>
__device__ void exact_sums(const Tiles& m, size_t block, uint32_t row, uint32_t phase,
                           const float* const (&x)[kVectors], float (&c)[kVectors][kWide<kType>]) {
  constexpr int kEach = kWide<kType>;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int b = 0; b < kEach; ++b) c[v][b] = 0;
  const auto add_span = [&](uint32_t s, bool whole) {
    float w[4][kEach];
    decode_span<kType>(m, block, s, row, phase, w);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int b = 0; b < kEach; ++b) {
        const uint32_t col = s * 64 + 16 * i + kEach * phase + b;
        if (whole || col < m.cols)
#pragma unroll
          for (int v = 0; v < kVectors; ++v) c[v][b] = __fadd_rn(c[v][b], __fmul_rn(w[i][b], x[v][col]));
      }
  };
  const uint32_t whole = static_cast<uint32_t>(m.cols / 64);
#pragma unroll 4
  for (uint32_t s = 0; s < whole; ++s) add_span(s, true);
  if (whole * 64 < m.cols) add_span(whole, false);
}

__device__ inline float exact_tree(const float (&sums)[16][17], uint32_t row) {
  float tree[16];
#pragma unroll
  for (int l = 0; l < 16; ++l) tree[l] = sums[l][row];
#pragma unroll
  for (int half = 8; half > 0; half /= 2)
#pragma unroll
    for (int l = 0; l < half; ++l) tree[l] = __fadd_rn(tree[l], tree[l + half]);
  return tree[0];
}

// Calls fn with the type as a constant.
template <class Fn>
void with_type(MatrixType type, Fn fn) {
  using enum MatrixType;
  switch (type) {
    case F32:
      return fn(std::integral_constant<MatrixType, F32>{});
    case F16:
      return fn(std::integral_constant<MatrixType, F16>{});
    case Bf16:
      return fn(std::integral_constant<MatrixType, Bf16>{});
    case Affine4:
      return fn(std::integral_constant<MatrixType, Affine4>{});
    case Affine8:
      return fn(std::integral_constant<MatrixType, Affine8>{});
    case Mxfp4:
      return fn(std::integral_constant<MatrixType, Mxfp4>{});
    case Fp8:
      return fn(std::integral_constant<MatrixType, Fp8>{});
  }
}

}  // namespace moeflux::cuda
