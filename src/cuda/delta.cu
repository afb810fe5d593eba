#include "cuda/delta.h"
#include "cuda/overlap.cuh"
#include "cuda/reduce.cuh"
#include "cuda/span.cuh"

namespace moeflux::cuda {
namespace {

__device__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

constexpr unsigned kTokens = 16;   // that are staged in shared memory at once
constexpr unsigned kColumns = 32;  // of the state, per block
constexpr unsigned kParts = 4;     // threads that share a column

// -- convolution

// The slice that token t belongs to.
__device__ SliceInfo slice_of(const DeltaNet& d, size_t t) {
  size_t s = 0;
  while (t >= d.slices[s].first + d.slices[s].count) ++s;
  return d.slices[s];
}

// A block is a head of q, k or v of one token: convolution and SiLU; q and k are brought to unit length.
__global__ void convolve_kernel(DeltaNet d) {
  wait_for_previous();
  let_next_begin();
  __shared__ float room[33];
  const size_t t = blockIdx.x, channels = d.channels(), past = d.conv_width - 1;
  const SliceInfo slice = slice_of(d, t);
  const float* state = slice.layers[d.layer].conv;
  const size_t qk = 2 * d.n_key_heads, head = blockIdx.y;
  const bool is_value = head >= qk;
  const size_t first = is_value ? qk * d.key_dim + (head - qk) * d.value_dim : head * d.key_dim;
  const unsigned dim = static_cast<unsigned>(is_value ? d.value_dim : d.key_dim);
  float squares = 0;
  float* out = d.mixed + t * channels + first;
  for (unsigned i = threadIdx.x; i < dim; i += blockDim.x) {
    const size_t c = first + i;
    float sum = 0;
    for (size_t j = 0; j <= past; ++j) {  // input j is the one of position - past + j
      const size_t from = t - slice.first + j;
      const float x =
          from >= past ? d.u[(slice.first + from - past) * channels + c] : state[from * channels + c];
      sum += d.conv[c * d.conv_width + j] * x;
    }
    const float y = silu_value(sum);
    out[i] = y;
    squares = fmaf(y, y, squares);
  }
  if (is_value) return;
  squares = block_sum(squares, room);
  float inverse = __fdiv_rn(1.0f, sqrtf(squares + d.unit_eps));
  if (head < d.n_key_heads) inverse *= __fdiv_rn(1.0f, sqrtf(static_cast<float>(d.key_dim)));
  for (unsigned i = threadIdx.x; i < dim; i += blockDim.x) out[i] *= inverse;
}

// The last inputs of a slice, oldest first. A thread has one channel.
__global__ void keep_inputs_kernel(DeltaNet d) {
  wait_for_previous();
  let_next_begin();
  const SliceInfo slice = d.slices[blockIdx.y];
  const size_t channels = d.channels(), past = d.conv_width - 1,
               c = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  float* state = slice.layers[d.layer].conv;
  for (size_t j = 0; j < past; ++j) {
    const size_t from = slice.count + j;
    state[j * channels + c] =
        from >= past ? d.u[(slice.first + from - past) * channels + c] : state[from * channels + c];
  }
}

// -- the delta rule

// A block has kColumns columns of one head's state, a thread kRows rows of one of them: with kDim rows in
// all (zeros beyond key_dim), row (4 b + part) * 4 + i is value 4 b + i of part `part`, so that neighbouring
// threads read neighbouring float4 of k and q.
template <unsigned kDim>
__global__ void __launch_bounds__(kColumns* kParts) delta_kernel(DeltaNet d) {
  wait_for_previous();
  let_next_begin();
  constexpr unsigned kBlocks = kDim / (4 * kParts), kRows = 4 * kBlocks;
  __shared__ float4 k[kTokens][kDim / 4], q[kTokens][kDim / 4];
  __shared__ float v[kTokens][kColumns], decay[kTokens], beta[kTokens], with_itself[kTokens];
  const SliceInfo slice = d.slices[blockIdx.z];
  const size_t head = blockIdx.y, key_head = head / (d.n_value_heads / d.n_key_heads);
  const unsigned part = threadIdx.x % kParts, local = threadIdx.x / kParts;
  const size_t column = blockIdx.x * kColumns + local, channels = d.channels();
  const bool has_column = column < d.value_dim;
  const auto row_of = [&](unsigned i) { return (i / 4 * kParts + part) * 4 + i % 4; };
  float* state = slice.layers[d.layer].state + head * d.key_dim * d.value_dim + column;
  float s[kRows];
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i)
    s[i] = has_column && row_of(i) < d.key_dim ? state[row_of(i) * d.value_dim] : 0.0f;

  for (size_t at = 0; at < slice.count; at += kTokens) {
    const unsigned n = static_cast<unsigned>(min(size_t{kTokens}, slice.count - at));
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n * kDim; i += blockDim.x) {
      const unsigned t = i / kDim, row = i % kDim;
      const float* from = d.mixed + (slice.first + at + t) * channels + key_head * d.key_dim;
      reinterpret_cast<float*>(q[t])[row] = row < d.key_dim ? from[row] : 0.0f;
      reinterpret_cast<float*>(k[t])[row] = row < d.key_dim ? from[d.n_key_heads * d.key_dim + row] : 0.0f;
    }
    for (unsigned i = threadIdx.x; i < n * kColumns; i += blockDim.x) {
      const size_t c = blockIdx.x * kColumns + i % kColumns;
      v[i / kColumns][i % kColumns] = c < d.value_dim
                                          ? d.mixed[(slice.first + at + i / kColumns) * channels +
                                                    2 * d.n_key_heads * d.key_dim + head * d.value_dim + c]
                                          : 0.0f;
    }
    if (threadIdx.x < n) {
      const size_t row = (slice.first + at + threadIdx.x) * d.ba_stride + head;
      beta[threadIdx.x] = sigmoid_value(d.b[row]);
      decay[threadIdx.x] = expf(-expf(d.a_log[head]) * softplus(d.a[row] + d.dt_bias[head]));
    }
    __syncthreads();
    for (unsigned t = threadIdx.x / 32; t < n; t += blockDim.x / 32) {
      float sum = 0;
      for (unsigned i = threadIdx.x % 32; i < kDim; i += 32)
        sum = fmaf(reinterpret_cast<const float*>(k[t])[i], reinterpret_cast<const float*>(q[t])[i], sum);
      sum = warp_sum(sum);
      if (threadIdx.x % 32 == 0) with_itself[t] = sum;
    }
    __syncthreads();
    for (unsigned t = 0; t < n; ++t) {
      float by_k[4] = {}, by_q[4] = {};
      float4 keys[kBlocks];
#pragma unroll
      for (unsigned b = 0; b < kBlocks; ++b) {
        keys[b] = k[t][b * kParts + part];
        const float4 query = q[t][b * kParts + part];
        const float* kb = &keys[b].x;
        const float* qb = &query.x;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          by_k[i] = fmaf(s[4 * b + i], kb[i], by_k[i]);
          by_q[i] = fmaf(s[4 * b + i], qb[i], by_q[i]);
        }
      }
      float sum_k = (by_k[0] + by_k[2]) + (by_k[1] + by_k[3]),
            sum_q = (by_q[0] + by_q[2]) + (by_q[1] + by_q[3]);
      for (unsigned step = 1; step < kParts; step *= 2) {
        sum_k += __shfl_xor_sync(0xffffffffu, sum_k, step);
        sum_q += __shfl_xor_sync(0xffffffffu, sum_q, step);
      }
      const float keep = decay[t], fresh = beta[t] * (v[t][local] - keep * sum_k);
#pragma unroll
      for (unsigned b = 0; b < kBlocks; ++b) {
        const float* kb = &keys[b].x;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) s[4 * b + i] = fmaf(kb[i], fresh, keep * s[4 * b + i]);
      }
      if (part == 0 && has_column)
        d.out[((slice.first + at + t) * d.n_value_heads + head) * d.value_dim + column] =
            fmaf(fresh, with_itself[t], keep * sum_q);
    }
  }
  if (!has_column) return;
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i)
    if (row_of(i) < d.key_dim) state[row_of(i) * d.value_dim] = s[i];
}

// -- norm and gate: a block is a token, a warp one head after another

__global__ void gate_kernel(DeltaNet d) {
  wait_for_previous();
  let_next_begin();
  extern __shared__ float inverse[];  // [value heads]
  const size_t t = blockIdx.x;
  const float* x = d.out + t * d.n_value_heads * d.value_dim;
  for (size_t head = threadIdx.x / 32; head < d.n_value_heads; head += blockDim.x / 32) {
    float sum = 0;
    for (unsigned i = threadIdx.x % 32; i < d.value_dim; i += 32)
      sum = fmaf(x[head * d.value_dim + i], x[head * d.value_dim + i], sum);
    sum = warp_sum(sum) / static_cast<float>(d.value_dim);
    if (threadIdx.x % 32 == 0) inverse[head] = __fdiv_rn(1.0f, sqrtf(sum + d.eps));
  }
  __syncthreads();
  const unsigned dim = static_cast<unsigned>(d.value_dim);
  store_vector(d.y, t, [&](unsigned c) {
    return d.norm[c % dim] * (x[c] * inverse[c / dim]) * silu_value(d.z[t * d.z_stride + c]);
  });
}

template <unsigned kDim>
void run_delta(const DeltaNet& d, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((d.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(d.n_value_heads), static_cast<unsigned>(d.n_slices));
  launch_overlapped("delta", delta_kernel<kDim>, grid, kColumns * kParts, 0, stream, d);
}

}  // namespace

void delta_net(const DeltaNet& d, cudaStream_t stream) {
  const auto n = static_cast<unsigned>(d.n), slices = static_cast<unsigned>(d.n_slices);
  const auto channels = static_cast<unsigned>(d.channels());
  const dim3 heads(n, static_cast<unsigned>(2 * d.n_key_heads + d.n_value_heads));
  launch_overlapped("convolve", convolve_kernel, heads, 128, 0, stream, d);
  if (d.conv_width > 1)
    launch_overlapped("keep_inputs", keep_inputs_kernel, dim3((channels + 255) / 256, slices), 256, 0, stream,
                      d);
  if (d.key_dim <= 16)
    run_delta<16>(d, stream);
  else if (d.key_dim <= 32)
    run_delta<32>(d, stream);
  else if (d.key_dim <= 64)
    run_delta<64>(d, stream);
  else if (d.key_dim <= 128)
    run_delta<128>(d, stream);
  else
    run_delta<kMostDeltaKeyDim>(d, stream);
  launch_overlapped("delta_gate", gate_kernel, n, 512, d.n_value_heads * sizeof(float), stream, d);
}

}  // namespace moeflux::cuda
