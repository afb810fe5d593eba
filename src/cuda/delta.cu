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

// A DeltaNet as kernels take it: 32-bit sizes, for quick divisions.
struct Job {
  unsigned n_key_heads, n_value_heads, group, key_dim, value_dim, width, channels, n_slices;
  size_t past, state;
  bool single;  // slices are single tokens
  const SliceInfo* slices;
  const float *u, *z, *b, *a;
  unsigned z_stride, ba_stride;
  const float *conv, *a_log, *dt_bias, *norm;
  float eps, unit_eps;
  float *mixed, *out;
  Vectors y;
  uint32_t* counters;
};

// -- convolution

// The slice that token t belongs to.
__device__ SliceInfo slice_of(const Job& d, unsigned t) {
  unsigned s = 0;
  while (t >= d.slices[s].first + d.slices[s].count) ++s;
  return d.slices[s];
}

// A block is a head of q, k or v of one token: convolution and SiLU; q and k are brought to unit length.
// Where slices are single tokens, a channel's past inputs are moved on as well; otherwise others still read
// them.
__global__ void convolve_kernel(const __grid_constant__ Job d) {
  __shared__ float room[33];
  const unsigned t = blockIdx.x, past = d.width - 1, qk = 2 * d.n_key_heads, head = blockIdx.y;
  const SliceInfo slice = d.single ? d.slices[t] : slice_of(d, t);
  float* state = slice.state + d.past;
  wait_for_previous();
  let_next_begin();
  const bool is_value = head >= qk;
  const unsigned first = is_value ? qk * d.key_dim + (head - qk) * d.value_dim : head * d.key_dim;
  const unsigned dim = is_value ? d.value_dim : d.key_dim, index = t - slice.first;
  float squares = 0;
  float* out = d.mixed + size_t{t} * d.channels + first;
  for (unsigned i = threadIdx.x; i < dim; i += blockDim.x) {
    const unsigned c = first + i;
    float sum = 0;
    for (unsigned j = 0; j <= past; ++j) {  // input j is the one of position - past + j
      const unsigned from = index + j;
      const float x = from >= past ? d.u[size_t{slice.first + from - past} * d.channels + c]
                                   : state[from * d.channels + c];
      sum += d.conv[c * d.width + j] * x;
      if (d.single && j > 0) state[(j - 1) * d.channels + c] = x;
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

// The last inputs of a slice, oldest first, and those after its first tokens. A thread has one channel.
__global__ void keep_inputs_kernel(const __grid_constant__ Job d) {
  wait_for_previous();
  let_next_begin();
  const SliceInfo slice = d.slices[blockIdx.y];
  const unsigned past = d.width - 1, c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= d.channels) return;
  float* state = slice.state + d.past;
  const auto keep = [&](unsigned count, float* to) {
    for (unsigned j = 0; j < past; ++j) {
      const unsigned from = count + j;
      to[j * d.channels + c] = from >= past ? d.u[size_t{slice.first + from - past} * d.channels + c]
                                            : state[from * d.channels + c];
    }
  };
  for (unsigned i = 0; i < slice.n_after; ++i) keep(i + 1, d.slices[blockIdx.y].after[i] + d.past);
  keep(slice.count, state);
}

// -- the delta rule

// A block has kColumns columns of one head's state, a thread kRows rows of one of them: with kDim rows in
// all (zeros beyond key_dim), row (4 b + part) * 4 + i is value 4 b + i of part `part`, so that neighbouring
// threads read neighbouring float4 of k and q.
template <unsigned kDim>
__global__ void __launch_bounds__(kColumns* kParts) delta_kernel(const __grid_constant__ Job d) {
  constexpr unsigned kBlocks = kDim / (4 * kParts), kRows = 4 * kBlocks;
  __shared__ float4 k[kTokens][kDim / 4], q[kTokens][kDim / 4];
  __shared__ float v[kTokens][kColumns], decay[kTokens], beta[kTokens], with_itself[kTokens];
  const SliceInfo slice = d.slices[blockIdx.z];
  const unsigned head = blockIdx.y, key_head = head / d.group;
  const unsigned part = threadIdx.x % kParts, local = threadIdx.x / kParts;
  const unsigned column = blockIdx.x * kColumns + local, channels = d.channels;
  const bool has_column = column < d.value_dim;
  const auto row_of = [&](unsigned i) { return (i / 4 * kParts + part) * 4 + i % 4; };
  const size_t mine = d.state + size_t{head} * d.key_dim * d.value_dim + column;
  float* state = slice.state + mine;
  float s[kRows];
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i)  // of the step before: need not be waited for
    s[i] = has_column && row_of(i) < d.key_dim ? state[row_of(i) * d.value_dim] : 0.0f;
  const float rate = -expf(d.a_log[head]), bias = d.dt_bias[head];
  wait_for_previous();
  let_next_begin();
  const auto store = [&](float* to) {
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i)
      if (has_column && row_of(i) < d.key_dim) to[row_of(i) * d.value_dim] = s[i];
  };

  for (unsigned at = 0; at < slice.count; at += kTokens) {
    const unsigned n = min(kTokens, slice.count - at);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n * kDim; i += blockDim.x) {
      const unsigned t = i / kDim, row = i % kDim;
      const float* from = d.mixed + size_t{slice.first + at + t} * channels + key_head * d.key_dim;
      reinterpret_cast<float*>(q[t])[row] = row < d.key_dim ? from[row] : 0.0f;
      reinterpret_cast<float*>(k[t])[row] = row < d.key_dim ? from[d.n_key_heads * d.key_dim + row] : 0.0f;
    }
    for (unsigned i = threadIdx.x; i < n * kColumns; i += blockDim.x) {
      const unsigned c = blockIdx.x * kColumns + i % kColumns;
      v[i / kColumns][i % kColumns] = c < d.value_dim
                                          ? d.mixed[size_t{slice.first + at + i / kColumns} * channels +
                                                    2 * d.n_key_heads * d.key_dim + head * d.value_dim + c]
                                          : 0.0f;
    }
    if (threadIdx.x < n) {
      const size_t row = size_t{slice.first + at + threadIdx.x} * d.ba_stride + head;
      beta[threadIdx.x] = sigmoid_value(d.b[row]);
      decay[threadIdx.x] = expf(rate * softplus(d.a[row] + bias));
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
        d.out[(size_t{slice.first + at + t} * d.n_value_heads + head) * d.value_dim + column] =
            fmaf(fresh, with_itself[t], keep * sum_q);
      if (at + t < slice.n_after) store(d.slices[blockIdx.z].after[at + t] + mine);
    }
  }
  store(state);
}

// -- norm and gate: a block is some heads of a token

__global__ void gate_kernel(const __grid_constant__ Job d, unsigned heads) {
  extern __shared__ float inverse[];  // [heads]
  wait_for_previous();
  let_next_begin();
  const unsigned t = blockIdx.x, first = blockIdx.y * heads, n = min(heads, d.n_value_heads - first);
  const float* x = d.out + (size_t{t} * d.n_value_heads + first) * d.value_dim;
  for (unsigned head = threadIdx.x / 32; head < n; head += blockDim.x / 32) {
    float sum = 0;
    for (unsigned i = threadIdx.x % 32; i < d.value_dim; i += 32)
      sum = fmaf(x[head * d.value_dim + i], x[head * d.value_dim + i], sum);
    sum = warp_sum(sum) / static_cast<float>(d.value_dim);
    if (threadIdx.x % 32 == 0) inverse[head] = __fdiv_rn(1.0f, sqrtf(sum + d.eps));
  }
  __syncthreads();
  const unsigned cols = n * d.value_dim, at = first * d.value_dim;
  for (unsigned i = threadIdx.x; i < quad_lanes(cols); i += blockDim.x) {
    float y[4] = {};
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned c = 4 * i + j;
      if (c >= cols) break;
      y[j] = d.norm[c % d.value_dim] * (x[c] * inverse[c / d.value_dim]) *
             silu_value(d.z[size_t{t} * d.z_stride + at + c]);
      d.y.f[t * d.y.stride + at + c] = y[j];
    }
    store_quantised(make_float4(y[0], y[1], y[2], y[3]), d.y, t,
                    4 * i < (cols + 63) / 64 * 64 ? at / 4 + i : kNowhere);
  }
}

// -- slices of single tokens: all of it in one launch

constexpr unsigned kMostWidth = 4;                     // of the convolution
constexpr unsigned kTokenThreads = 512, kGroup = 128;  // of q, of k, and the rest for v

// A block is a value head of a token; threads have the same rows of the state as in delta_kernel, but those
// of a warp are neighbouring columns, so that its loads are whole lines. Each has one channel of what the
// head needs of q, k and v. The same operations in the same order as the kernels above.
template <unsigned kDim>
__global__ void __launch_bounds__(kTokenThreads) delta_token_kernel(const __grid_constant__ Job d) {
  constexpr unsigned kBlocks = kDim / (4 * kParts), kRows = 4 * kBlocks;
  __shared__ float4 q[kDim / 4], k[kDim / 4];
  __shared__ float v[2 * kGroup], o[kGroup], room[kTokenThreads / 32], gates[2];
  __shared__ float parts[2][kParts][kGroup];  // of the state times k and q
  __shared__ bool last;
  const SliceInfo slice = d.slices[blockIdx.y];
  const unsigned head = blockIdx.x, key_head = head / d.group, t = slice.first, past = d.width - 1;
  const unsigned part = threadIdx.x / kGroup, column = threadIdx.x % kGroup, lane = threadIdx.x % 32;
  const bool has_column = column < d.value_dim;
  const auto row_of = [&](unsigned i) { return (i / 4 * kParts + part) * 4 + i % 4; };
  const size_t mine = d.state + size_t{head} * d.key_dim * d.value_dim + column;
  // What does not depend on the kernels before.
  float s[kRows];
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i)
    s[i] = has_column && row_of(i) < d.key_dim ? slice.state[mine + row_of(i) * d.value_dim] : 0.0f;
  const unsigned group = min(threadIdx.x / kGroup, 2u), i = threadIdx.x - group * kGroup;
  const bool is_value = group == 2, has_channel = i < (is_value ? d.value_dim : d.key_dim);
  const unsigned c = is_value ? 2 * d.n_key_heads * d.key_dim + head * d.value_dim + i
                              : (group * d.n_key_heads + key_head) * d.key_dim + i;
  float x[kMostWidth] = {}, w[kMostWidth] = {};
#pragma unroll
  for (unsigned j = 0; j < kMostWidth; ++j) {
    if (has_channel && j < past) x[j] = slice.state[d.past + j * d.channels + c];
    if (has_channel && j <= past) w[j] = d.conv[c * d.width + j];
  }
  const float rate = -expf(d.a_log[head]), bias = d.dt_bias[head];
  wait_for_previous();
  let_next_begin();

  const float newest = has_channel ? d.u[size_t{t} * d.channels + c] : 0.0f;
  float z[4] = {};  // of the columns that a lane of the first warp gates
#pragma unroll
  for (unsigned j = 0; j < 4; ++j)
    if (threadIdx.x < 32 && 4 * lane + j < d.value_dim)
      z[j] = d.z[size_t{t} * d.z_stride + head * d.value_dim + 4 * lane + j];
  if (threadIdx.x == kTokenThreads - 1) {
    const size_t row = size_t{t} * d.ba_stride + head;
    const float b = d.b[row], a = d.a[row];
    gates[0] = sigmoid_value(b);
    gates[1] = expf(rate * softplus(a + bias));
  }
  float sum = 0;
#pragma unroll
  for (unsigned j = 0; j < kMostWidth; ++j) {
    if (j == past) x[j] = newest;
    if (j <= past) sum += w[j] * x[j];
  }
  const float y = has_channel ? silu_value(sum) : 0.0f;
  const float squares = warp_sum(fmaf(y, y, 0.0f));
  if (lane == 0) room[threadIdx.x / 32] = squares;
  __syncthreads();
  if (threadIdx.x == 0)  // all threads have read the past inputs of q and k
    last = atomicInc(&d.counters[blockIdx.y * d.n_key_heads + key_head], d.group - 1) == d.group - 1;
  if (is_value) {
    if (i < d.value_dim) v[i] = y;
  } else if (i < kDim) {
    const float* r = room + group * (kGroup / 32);
    float inverse = __fdiv_rn(1.0f, sqrtf(((r[0] + r[2]) + (r[1] + r[3])) + d.unit_eps));
    if (group == 0) inverse *= __fdiv_rn(1.0f, sqrtf(static_cast<float>(d.key_dim)));
    reinterpret_cast<float*>(group ? k : q)[i] = y * inverse;
  }
  __syncthreads();

  float by_k[4] = {}, by_q[4] = {};
#pragma unroll
  for (unsigned b = 0; b < kBlocks; ++b) {
    const float4 key = k[b * kParts + part], query = q[b * kParts + part];
    const float* kb = &key.x;
    const float* qb = &query.x;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      by_k[j] = fmaf(s[4 * b + j], kb[j], by_k[j]);
      by_q[j] = fmaf(s[4 * b + j], qb[j], by_q[j]);
    }
  }
  float with_itself = 0;
#pragma unroll
  for (unsigned j = lane; j < kDim; j += 32)
    with_itself =
        fmaf(reinterpret_cast<const float*>(k)[j], reinterpret_cast<const float*>(q)[j], with_itself);
  with_itself = warp_sum(with_itself);
  parts[0][part][column] = (by_k[0] + by_k[2]) + (by_k[1] + by_k[3]);
  parts[1][part][column] = (by_q[0] + by_q[2]) + (by_q[1] + by_q[3]);
  __syncthreads();
  const auto total = [&](const float(&p)[kParts][kGroup]) {
    return (p[0][column] + p[1][column]) + (p[2][column] + p[3][column]);
  };
  const float sum_k = total(parts[0]), sum_q = total(parts[1]);
  const float keep = gates[1], fresh = has_column ? gates[0] * (v[column] - keep * sum_k) : 0.0f;
  if (part == 0 && has_column) o[column] = fmaf(fresh, with_itself, keep * sum_q);
  __syncthreads();

  if (threadIdx.x < 32) {
    float squares = 0;
    for (unsigned j = lane; j < d.value_dim; j += 32) squares = fmaf(o[j], o[j], squares);
    squares = warp_sum(squares) / static_cast<float>(d.value_dim);
    const float inverse = __fdiv_rn(1.0f, sqrtf(squares + d.eps));
    const unsigned at = head * d.value_dim;
    float gated[4] = {};
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned col = 4 * lane + j;
      if (col >= d.value_dim) break;
      gated[j] = d.norm[col] * (o[col] * inverse) * silu_value(z[j]);
      d.y.f[t * d.y.stride + at + col] = gated[j];
    }
    store_quantised(make_float4(gated[0], gated[1], gated[2], gated[3]), d.y, t,
                    4 * lane < d.value_dim ? at / 4 + lane : kNowhere);
  }
#pragma unroll
  for (unsigned b = 0; b < kBlocks; ++b) {
    const float4 key = k[b * kParts + part];
    const float* kb = &key.x;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) s[4 * b + j] = fmaf(kb[j], fresh, keep * s[4 * b + j]);
  }
  const auto store = [&](float* to) {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r)
      if (has_column && row_of(r) < d.key_dim) to[mine + row_of(r) * d.value_dim] = s[r];
    if (!has_channel || !(is_value || last)) return;
#pragma unroll
    for (unsigned j = 1; j < kMostWidth; ++j)
      if (j <= past) to[d.past + (j - 1) * d.channels + c] = x[j];
  };
  store(slice.state);
  if (slice.n_after > 0) store(d.slices[blockIdx.y].after[0]);
}

bool token_can(const Job& d) {
  return d.counters && d.single && d.width <= kMostWidth && d.key_dim <= kGroup && d.value_dim <= kGroup &&
         (!d.y.q || d.value_dim % 64 == 0);
}

template <unsigned kDim>
void run_token(const Job& d, cudaStream_t stream) {
  launch_overlapped("delta_token", delta_token_kernel<kDim>, dim3(d.n_value_heads, d.n_slices), kTokenThreads,
                    0, stream, d);
}

template <unsigned kDim>
void run_delta(const Job& d, cudaStream_t stream) {
  const dim3 grid((d.value_dim + kColumns - 1) / kColumns, d.n_value_heads, d.n_slices);
  launch_overlapped("delta", delta_kernel<kDim>, grid, kColumns * kParts, 0, stream, d);
}

}  // namespace

void delta_net(const DeltaNet& d, cudaStream_t stream) {
  const auto u = [](size_t x) { return static_cast<unsigned>(x); };
  const Job job{.n_key_heads = u(d.n_key_heads),
                .n_value_heads = u(d.n_value_heads),
                .group = u(d.n_value_heads / d.n_key_heads),
                .key_dim = u(d.key_dim),
                .value_dim = u(d.value_dim),
                .width = u(d.conv_width),
                .channels = u(d.channels()),
                .n_slices = u(d.n_slices),
                .past = d.past,
                .state = d.state,
                .single = d.n_slices == d.n,
                .slices = d.slices,
                .u = d.u,
                .z = d.z,
                .b = d.b,
                .a = d.a,
                .z_stride = u(d.z_stride),
                .ba_stride = u(d.ba_stride),
                .conv = d.conv,
                .a_log = d.a_log,
                .dt_bias = d.dt_bias,
                .norm = d.norm,
                .eps = d.eps,
                .unit_eps = d.unit_eps,
                .mixed = d.mixed,
                .out = d.out,
                .y = d.y,
                .counters = d.counters};
  const unsigned n = u(d.n);
  if (token_can(job)) return d.key_dim <= 64 ? run_token<64>(job, stream) : run_token<128>(job, stream);
  launch_overlapped("convolve", convolve_kernel, dim3(n, 2 * job.n_key_heads + job.n_value_heads), 128, 0,
                    stream, job);
  if (job.width > 1 && !job.single)
    launch_overlapped("keep_inputs", keep_inputs_kernel, dim3((job.channels + 255) / 256, job.n_slices), 256,
                      0, stream, job);
  if (d.key_dim <= 16)
    run_delta<16>(job, stream);
  else if (d.key_dim <= 32)
    run_delta<32>(job, stream);
  else if (d.key_dim <= 64)
    run_delta<64>(job, stream);
  else if (d.key_dim <= 128)
    run_delta<128>(job, stream);
  else
    run_delta<kMostDeltaKeyDim>(job, stream);
  // Blocks of whole spans, so that each can quantise its own.
  const unsigned heads = 2 * d.value_dim % 64 == 0 ? 2 : job.n_value_heads;
  launch_overlapped("delta_gate", gate_kernel, dim3(n, (job.n_value_heads + heads - 1) / heads),
                    heads == 2 ? 64 : 512, heads * sizeof(float), stream, job, heads);
}

}  // namespace moeflux::cuda
