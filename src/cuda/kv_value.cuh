// Reading and writing values of a KV cache in its three forms.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/reduce.cuh"
#include "cuda/step_info.h"
#include "ops/attention.h"

namespace moeflux::cuda {

template <KvType>
struct KvValue;
template <>
struct KvValue<KvType::F32> {
  using Type = float;
  __device__ static float load(float x) { return x; }
};
template <>
struct KvValue<KvType::Bf16> {
  using Type = __nv_bfloat16;
  __device__ static float load(__nv_bfloat16 x) { return __bfloat162float(x); }
};
template <>
struct KvValue<KvType::Q8> {
  using Type = int8_t;
  __device__ static float load(int8_t x) { return static_cast<float>(x); }
};

// The page that has a position.
__device__ inline std::byte* page_of(std::byte* const* pages, const KvPlace& place, unsigned position) {
  return pages[size_t{position / kKvPage} * place.n_groups + place.group];
}

// A whole block stores a row of n values; int8 gets one scale. room: block_reduce's.
inline __device__ void store_row(KvType type, void* base, float* scales, size_t row, const float* x,
                                 unsigned n, float* room) {
  if (type == KvType::Q8) {
    float most = 0;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, fabsf(x[i]));
    const float scale = __fdiv_rn(block_max(most, room), 127.0f);
    const float inverse = scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
      static_cast<int8_t*>(base)[row * n + i] =
          static_cast<int8_t>(fminf(fmaxf(rintf(__fmul_rn(x[i], inverse)), -127.0f), 127.0f));
    if (threadIdx.x == 0) scales[row] = scale;
    return;
  }
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
    if (type == KvType::F32)
      static_cast<float*>(base)[row * n + i] = x[i];
    else
      static_cast<__nv_bfloat16*>(base)[row * n + i] = __float2bfloat16_rn(x[i]);
}

}  // namespace moeflux::cuda
