// Sums and maxima over a block's threads, in an order that depends on the number of threads only.
#pragma once

namespace moeflux::cuda {

__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Every thread gets the result. `room` holds 33 floats in shared memory; all threads of the block take part.
template <bool kMax>
__device__ inline float block_reduce(float x, float* room) {
  x = kMax ? warp_max(x) : warp_sum(x);
  const unsigned warps = (blockDim.x + 31) / 32;
  if (warps == 1) return x;
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x < 32) {
    float y = threadIdx.x < warps ? room[threadIdx.x] : (kMax ? -INFINITY : 0.0f);
    y = kMax ? warp_max(y) : warp_sum(y);
    if (threadIdx.x == 0) room[32] = y;
  }
  __syncthreads();
  x = room[32];
  __syncthreads();
  return x;
}
// The same for blocks of four warps, with one barrier; `room` is four floats, aligned to 16 bytes, for this
// sum alone until the next barrier.
template <bool kMax>
__device__ inline float reduce_four(float x, float* room) {
  x = kMax ? warp_max(x) : warp_sum(x);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  const float4 all = *reinterpret_cast<const float4*>(room);
  return kMax ? fmaxf(fmaxf(all.x, all.y), fmaxf(all.z, all.w)) : (all.x + all.y) + (all.z + all.w);
}

__device__ inline float block_sum(float x, float* room) { return block_reduce<false>(x, room); }
__device__ inline float block_max(float x, float* room) { return block_reduce<true>(x, room); }

}  // namespace moeflux::cuda
