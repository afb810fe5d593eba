#include "cuda/overlap.cuh"
#include "cuda/pointwise.h"
#include "cuda/reduce.cuh"
#include "cuda/span.cuh"

namespace moeflux::cuda {
namespace {

unsigned threads_for(size_t cols) {
  const size_t warps = (cols + 127) / 128;  // four values per thread
  return static_cast<unsigned>(32 * (warps < 1 ? 1 : warps > 16 ? 16 : warps));
}

__global__ void rope_table_kernel(const TokenInfo* tokens, const float* inv_freq, unsigned half, float scale,
                                  float* cosine, float* sine) {
  wait_for_previous();
  let_next_begin();
  const unsigned t = blockIdx.x;
  const float position = static_cast<float>(tokens[t].position);
  for (unsigned i = threadIdx.x; i < half; i += blockDim.x) {
    float s, c;
    sincosf(__fmul_rn(position, inv_freq[i]), &s, &c);
    cosine[t * half + i] = __fmul_rn(c, scale);
    sine[t * half + i] = __fmul_rn(s, scale);
  }
}

__global__ void rms_norm_kernel(const float* x, size_t x_stride, const uint32_t* rows, const float* w,
                                float eps, Vectors out) {
  wait_for_previous();
  let_next_begin();
  __shared__ float room[33];
  const size_t t = blockIdx.x, from = rows ? rows[t] : t;
  const unsigned cols = static_cast<unsigned>(out.cols);
  x += from * x_stride;
  float sum = 0;
  for (unsigned i = threadIdx.x; i < cols; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
  sum = block_sum(sum, room);
  const float inverse = __fdiv_rn(1.0f, sqrtf(sum / static_cast<float>(cols) + eps));
  store_vector(out, t, [&](unsigned i) { return w[i] * (x[i] * inverse); });
}

__global__ void __launch_bounds__(512) publish_kernel(const __grid_constant__ Publication p) {
  wait_for_previous();
  for (size_t i = threadIdx.x; i < p.n_ids; i += blockDim.x) p.ids_to[i] = p.ids[i];
#pragma unroll 4
  for (size_t i = threadIdx.x; i < p.n_values; i += blockDim.x) p.values_to[i] = p.values[i];
  for (size_t l = 0; l < p.n_lists; ++l) {
    const Shortlist& from = p.lists[l];
    Shortlist& to = p.lists_to[l];
    if (threadIdx.x == 0) to.total = from.total, to.n = from.n;
    for (size_t i = threadIdx.x; i < min(from.n, kMostListed); i += blockDim.x) to.keys[i] = from.keys[i];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *static_cast<volatile uint32_t*>(p.told) = ++*p.count;
}

}  // namespace

void publish(const Publication& p, cudaStream_t stream) {
  launch_overlapped("publish", publish_kernel, 1, 512, 0, stream, p);
}

void rope_table(const TokenInfo* tokens, size_t n, const float* inv_freq, size_t half, float scale,
                float* cosine, float* sine, cudaStream_t stream) {
  if (half == 0) return;
  launch_overlapped("rope_table", rope_table_kernel, static_cast<unsigned>(n), 64, 0, stream, tokens,
                    inv_freq, static_cast<unsigned>(half), scale, cosine, sine);
}

void rms_norm(const float* x, size_t x_stride, const uint32_t* rows, const float* w, float eps,
              const Vectors& out, cudaStream_t stream) {
  launch_overlapped("rms_norm", rms_norm_kernel, static_cast<unsigned>(out.n), threads_for(out.cols), 0,
                    stream, x, x_stride, rows, w, eps, out);
}

}  // namespace moeflux::cuda
