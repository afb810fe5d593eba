// Vectors that a kernel makes and quantises in one go, four columns per lane.
#pragma once

#include "cuda/numerics.cuh"

namespace moeflux::cuda {

// Lanes to go over in steps of whole warps, so that every lane takes part in store_quantised.
__device__ inline unsigned quad_lanes(size_t cols) {
  return static_cast<unsigned>((cols + 63) / 64 * 16 + 31) / 32 * 32;
}

constexpr unsigned kNowhere = 0xffffffffu;

// Columns 4 i .. 4 i + 3 of vector t, zeros beyond the vector; writes the int8 form where there is room for
// it, but not for i = kNowhere.
__device__ inline void store_quantised(float4 x, const Vectors& out, size_t t, unsigned i) {
  if (!out.q) return;
  QuantSpan span;
  const int codes = quantise_span(x, span);
  const size_t spans = (out.cols + 63) / 64, s = i / 16, at = t * spans + s;
  if (s >= spans) return;
  reinterpret_cast<int*>(out.q)[at * 16 + i % 16] = codes;
  if (i % 16 == 0) out.span[at] = span;
}

// fn(c) gives column c; floats and int8 form of vector t are stored. All threads of the block.
template <class Fn>
__device__ inline void store_vector(const Vectors& out, size_t t, Fn fn) {
  const unsigned cols = static_cast<unsigned>(out.cols);
  for (unsigned i = threadIdx.x; i < quad_lanes(cols); i += blockDim.x) {
    float x[4] = {};
#pragma unroll
    for (unsigned j = 0; j < 4; ++j)
      if (4 * i + j < cols) out.f[t * out.stride + 4 * i + j] = x[j] = fn(4 * i + j);
    store_quantised(make_float4(x[0], x[1], x[2], x[3]), out, t, i);
  }
}

}  // namespace moeflux::cuda
