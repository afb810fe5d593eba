#include "cuda/attention.h"
#include "cuda/kv_value.cuh"
#include "cuda/overlap.cuh"
#include "cuda/span.cuh"

namespace moeflux::cuda {
namespace {

constexpr unsigned kThreads = 128;
static_assert(kThreads == kAttendPart, "a thread is a position of a part");
constexpr unsigned kMostOut = kMostValueDim / kThreads;

__device__ float rms_inverse(float sum, size_t n, float eps) {
  return __fdiv_rn(1.0f, sqrtf(sum / static_cast<float>(n) + eps));
}

// Rotates x in shared memory; x was complete before, and is after a barrier.
__device__ void rotate(const Rope& r, size_t t, float* x) {
  for (unsigned i = threadIdx.x; i < r.half; i += blockDim.x) {
    const float c = r.cosine[t * r.half + i], s = r.sine[t * r.half + i];
    float &a = x[r.interleaved ? 2 * i : i], &b = x[r.interleaved ? 2 * i + 1 : i + r.half];
    const float a0 = a, b0 = b;
    a = __fsub_rn(__fmul_rn(a0, c), __fmul_rn(b0, s));
    b = __fadd_rn(__fmul_rn(b0, c), __fmul_rn(a0, s));
  }
}

__global__ void whole_inverse_kernel(PrepareHeads p) {
  wait_for_previous();
  let_next_begin();
  __shared__ float room[33];
  const size_t t = blockIdx.x;
  const bool key = blockIdx.y == 1;
  const size_t n = (key ? p.n_kv_heads : p.n_heads) * p.dim;
  float sum = 0;
  for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float x = key ? p.k[t * n + i] : p.q[t * p.q_stride + i / p.dim * p.q_head + i % p.dim];
    sum = fmaf(x, x, sum);
  }
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) p.inverse[2 * t + key] = rms_inverse(sum, n, p.eps);
}

// A block is a head of a token: of q, then of k, then of v.
__global__ void prepare_heads_kernel(PrepareHeads p) {
  wait_for_previous();
  let_next_begin();
  extern __shared__ float x[];
  __shared__ float room[33];
  const size_t t = blockIdx.x, dim = p.dim, kv_width = p.n_kv_heads * dim;
  size_t head = blockIdx.y;
  enum { kQuery, kKey, kValue } kind = kQuery;
  const float* from = p.q + t * p.q_stride + head * p.q_head;
  if (head >= p.n_heads) {
    head -= p.n_heads;
    kind = head < p.n_kv_heads ? kKey : kValue;
    if (kind == kValue) head -= p.n_kv_heads;
    from = (kind == kKey ? p.k : p.v) + t * kv_width + head * dim;
  }
  const float* norm = kind == kQuery ? p.q_norm : kind == kKey ? p.k_norm : nullptr;
  float sum = 0;
  for (unsigned i = threadIdx.x; i < dim; i += blockDim.x) {
    x[i] = from[i];
    sum = fmaf(x[i], x[i], sum);
  }
  float inverse = 1;
  if (norm) {
    inverse = p.whole ? p.inverse[2 * t + (kind == kKey)] : rms_inverse(block_sum(sum, room), dim, p.eps);
    if (p.whole) norm += head * dim;
  }
  for (unsigned i = threadIdx.x; i < dim; i += blockDim.x) {
    float value = norm ? norm[i] * (x[i] * inverse) : x[i];
    if (p.clip > 0) value = fminf(fmaxf(value, -p.clip), p.clip);
    x[i] = value;
  }
  __syncthreads();
  if (kind != kValue) rotate(p.rope, t, x);
  __syncthreads();
  if (kind == kQuery) {
    for (unsigned i = threadIdx.x; i < dim; i += blockDim.x) p.q_out[(t * p.n_heads + head) * dim + i] = x[i];
    return;
  }
  const TokenInfo token = p.tokens[t];
  std::byte* page = page_of(token.pages, p.place, token.position);
  store_row(p.kv, page + (kind == kKey ? p.place.keys : p.place.values),
            reinterpret_cast<float*>(page + (kind == kKey ? p.place.key_scale : p.place.value_scale)),
            head * kKvPage + token.position % kKvPage, x, static_cast<unsigned>(dim), room);
}

// Block 0 of a token is its latent and rotated key, the others are heads of q.
__global__ void prepare_latent_kernel(PrepareLatent p) {
  wait_for_previous();
  let_next_begin();
  extern __shared__ float x[];
  __shared__ float room[33];
  const size_t t = blockIdx.x, width = p.kv_rank + p.rope_dim;
  if (blockIdx.y == 0) {
    float sum = 0;
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
      x[i] = p.kv[t * width + i];
      if (i < p.kv_rank) sum = fmaf(x[i], x[i], sum);
    }
    const float inverse = rms_inverse(block_sum(sum, room), p.kv_rank, p.eps);
    for (unsigned i = threadIdx.x; i < p.kv_rank; i += blockDim.x) x[i] = p.kv_norm[i] * (x[i] * inverse);
    __syncthreads();
    rotate(p.rope, t, x + p.kv_rank);
    __syncthreads();
    const TokenInfo token = p.tokens[t];
    std::byte* page = page_of(token.pages, p.place, token.position);
    return store_row(p.kv_type, page + p.place.keys, reinterpret_cast<float*>(page + p.place.key_scale),
                     token.position % kKvPage, x, static_cast<unsigned>(width), room);
  }
  const size_t at = t * p.n_heads + blockIdx.y - 1, q_dim = p.nope_dim + p.rope_dim;
  const float* q = p.q + at * q_dim;
  for (unsigned i = threadIdx.x; i < p.rope_dim; i += blockDim.x) x[i] = q[p.nope_dim + i];
  __syncthreads();
  rotate(p.rope, t, x);
  __syncthreads();
  for (unsigned i = threadIdx.x; i < p.rope_dim; i += blockDim.x)
    p.absorbed[at * width + p.kv_rank + i] = x[i];
  store_vector(p.nope, at, [&](unsigned i) { return q[i]; });
}

// -- attention

struct Merged {  // what a query has gathered so far; each thread has some components of out
  float most, sum;
  float out[kMostOut];
};

__device__ void merge(Merged& into, float most, float sum, const float* out, unsigned n_out) {
  const float m = fmaxf(into.most, most);
  const float a = expf(into.most - m), b = expf(most - m);
  into.most = m;
  into.sum = into.sum * a + sum * b;
#pragma unroll
  for (unsigned j = 0; j < kMostOut; ++j)
    if (j < n_out) into.out[j] = into.out[j] * a + out[j] * b;
}

struct Seen {
  size_t first, last;  // positions, inclusive
};
__device__ Seen seen(const Attend& a, size_t t) {
  const size_t last = a.tokens[t].position;
  return {a.window && last + 1 > a.window ? last + 1 - a.window : 0, last};
}

// A key/value head of a sequence.
template <KvType kType>
class Cache {
 public:
  using Value = typename KvValue<kType>::Type;
  __device__ Cache(const Attend& a, size_t t, size_t head)
      : pages_(a.tokens[t].pages),
        place_(a.place),
        first_row_(static_cast<unsigned>(head / (a.n_heads / a.n_kv_heads)) * kKvPage),
        key_dim_(a.key_dim),
        value_stride_(a.place.own_values ? a.value_dim : a.key_dim) {}

  __device__ const Value* key(unsigned position) const {
    return at<Value>(position, place_.keys) + row(position) * key_dim_;
  }
  // Of positions in one page, the next one's follows.
  __device__ const Value* value(unsigned position) const {
    return at<Value>(position, place_.values) + row(position) * value_stride_;
  }
  __device__ size_t value_stride() const { return value_stride_; }
  __device__ float key_scale(unsigned position) const {
    return at<float>(position, place_.key_scale)[row(position)];
  }
  __device__ float value_scale(unsigned position) const {
    return at<float>(position, place_.value_scale)[row(position)];
  }

 private:
  template <class T>
  __device__ const T* at(unsigned position, uint64_t part) const {
    return reinterpret_cast<const T*>(page_of(pages_, place_, position) + part);
  }
  __device__ size_t row(unsigned position) const { return first_row_ + position % kKvPage; }

  std::byte* const* pages_;
  const KvPlace& place_;
  const unsigned first_row_;
  const size_t key_dim_, value_stride_;
};

// One part of one query: thread i has position part * kAttendPart + i for the scores and components i, i +
// 128, .. for the values.
template <KvType kType>
__device__ void attend_part(const Attend& a, const Cache<kType>& cache, Seen s, size_t part, const float* q,
                            float* weight, float* room, float& most, float& sum, float* out) {
  using Kv = KvValue<kType>;
  const size_t from = part * kAttendPart, position = from + threadIdx.x;
  float score = -INFINITY;
  if (position >= s.first && position <= s.last) {
    const auto* key = cache.key(static_cast<unsigned>(position));
    float c[4] = {};
    size_t d = 0;
    for (; d + 4 <= a.key_dim; d += 4)
#pragma unroll
      for (int k = 0; k < 4; ++k) c[k] = fmaf(q[d + k], Kv::load(key[d + k]), c[k]);
    for (; d < a.key_dim; ++d) c[0] = fmaf(q[d], Kv::load(key[d]), c[0]);
    score = ((c[0] + c[2]) + (c[1] + c[3])) * a.scale;
    if (kType == KvType::Q8) score *= cache.key_scale(static_cast<unsigned>(position));
  }
  most = block_max(score, room);
  const float w = score == -INFINITY ? 0.0f : expf(score - most);
  sum = block_sum(w, room);
  float scaled = w;
  if (kType == KvType::Q8 && w > 0) scaled *= cache.value_scale(static_cast<unsigned>(position));
  weight[threadIdx.x] = scaled;
  __syncthreads();
  const size_t low = s.first > from ? s.first : from, high = min(s.last, from + kAttendPart - 1);
#pragma unroll
  for (unsigned j = 0; j < kMostOut; ++j) {
    const size_t d = threadIdx.x + j * kThreads;
    if (d >= a.value_dim) break;
    float o = 0;
    for (size_t p = low; p <= high;) {  // page by page
      const auto* value = cache.value(static_cast<unsigned>(p)) + d;
      const size_t end = min(high + 1, (p / kKvPage + 1) * kKvPage);
      for (; p < end; ++p, value += cache.value_stride()) o = fmaf(weight[p - from], Kv::load(*value), o);
    }
    out[j] = o;
  }
  __syncthreads();
}

__device__ void finish(const Attend& a, size_t t, size_t head, Merged& m, unsigned n_out) {
  if (a.sinks) {
    const float sink = a.sinks[head], most = fmaxf(m.most, sink), keep = expf(m.most - most);
    m.sum = m.sum * keep + expf(sink - most);
    for (unsigned j = 0; j < n_out; ++j) m.out[j] *= keep;
  }
#pragma unroll
  for (unsigned j = 0; j < kMostOut; ++j) {
    const size_t d = threadIdx.x + j * kThreads;
    if (d >= a.value_dim) break;
    float o = m.out[j] / m.sum;
    if (a.gate) o *= sigmoid_value(a.gate[t * a.gate_stride + head * a.gate_head + d]);
    a.out[(t * a.n_heads + head) * a.value_dim + d] = o;
  }
}

// kSplit: a block computes one part and leaves it in a.parts; otherwise all parts of its query.
template <KvType kType, bool kSplit>
__global__ void attend_kernel(Attend a) {
  wait_for_previous();
  let_next_begin();
  extern __shared__ float q[];
  __shared__ float room[33], weight[kAttendPart];
  const size_t t = blockIdx.x, head = blockIdx.y;
  const Seen s = seen(a, t);
  const size_t first = s.first / kAttendPart, last = s.last / kAttendPart;
  if (kSplit && first + blockIdx.z > last) return;
  for (unsigned i = threadIdx.x; i < a.key_dim; i += kThreads)
    q[i] = a.q[(t * a.n_heads + head) * a.key_dim + i];
  __syncthreads();
  const Cache<kType> cache(a, t, head);
  const unsigned n_out = static_cast<unsigned>((a.value_dim + kThreads - 1) / kThreads);
  Merged m;
  if constexpr (kSplit) {
    attend_part<kType>(a, cache, s, first + blockIdx.z, q, weight, room, m.most, m.sum, m.out);
    float* to = a.parts + ((t * a.n_heads + head) * a.n_parts + blockIdx.z) * (a.value_dim + 2);
    if (threadIdx.x == 0) {
      to[0] = m.most;
      to[1] = m.sum;
    }
#pragma unroll
    for (unsigned j = 0; j < kMostOut; ++j) {
      const size_t d = threadIdx.x + j * kThreads;
      if (d < a.value_dim) to[2 + d] = m.out[j];
    }
  } else {
    attend_part<kType>(a, cache, s, first, q, weight, room, m.most, m.sum, m.out);
    for (size_t part = first + 1; part <= last; ++part) {
      float most, sum, out[kMostOut];
      attend_part<kType>(a, cache, s, part, q, weight, room, most, sum, out);
      merge(m, most, sum, out, n_out);
    }
    finish(a, t, head, m, n_out);
  }
}

__global__ void merge_parts_kernel(Attend a) {
  wait_for_previous();
  let_next_begin();
  const size_t t = blockIdx.x, head = blockIdx.y;
  const Seen s = seen(a, t);
  const size_t n = s.last / kAttendPart - s.first / kAttendPart + 1;
  const float* from = a.parts + (t * a.n_heads + head) * a.n_parts * (a.value_dim + 2);
  const unsigned n_out = static_cast<unsigned>((a.value_dim + kThreads - 1) / kThreads);
  Merged m;
  for (size_t p = 0; p < n; ++p, from += a.value_dim + 2) {
    float out[kMostOut];
#pragma unroll
    for (unsigned j = 0; j < kMostOut; ++j) {
      const size_t d = threadIdx.x + j * kThreads;
      if (d < a.value_dim) out[j] = from[2 + d];
    }
    if (p == 0) {
      m.most = from[0];
      m.sum = from[1];
#pragma unroll
      for (unsigned j = 0; j < kMostOut; ++j) m.out[j] = out[j];
    } else {
      merge(m, from[0], from[1], out, n_out);
    }
  }
  finish(a, t, head, m, n_out);
}

template <KvType kType>
void attend_typed(const Attend& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.n), static_cast<unsigned>(a.n_heads),
                  a.parts ? static_cast<unsigned>(a.n_parts) : 1);
  const size_t room = a.key_dim * sizeof(float);
  if (a.parts) {
    launch_overlapped("attend", attend_kernel<kType, true>, grid, kThreads, room, stream, a);
    launch_overlapped("merge_parts", merge_parts_kernel, dim3(grid.x, grid.y), kThreads, 0, stream, a);
  } else {
    launch_overlapped("attend", attend_kernel<kType, false>, grid, kThreads, room, stream, a);
  }
}

unsigned head_threads(size_t dim) { return dim <= 32 ? 32 : dim <= 64 ? 64 : 128; }

}  // namespace

void whole_inverse(const PrepareHeads& p, cudaStream_t stream) {
  launch_overlapped("whole_inverse", whole_inverse_kernel, dim3(static_cast<unsigned>(p.n), 2), 256, 0,
                    stream, p);
}

void prepare_heads(const PrepareHeads& p, cudaStream_t stream) {
  const auto n = static_cast<unsigned>(p.n);
  if (p.whole) whole_inverse(p, stream);
  const dim3 grid(n, static_cast<unsigned>(p.n_heads + 2 * p.n_kv_heads));
  launch_overlapped("prepare_heads", prepare_heads_kernel, grid, head_threads(p.dim), p.dim * sizeof(float),
                    stream, p);
}

void prepare_latent(const PrepareLatent& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.n), static_cast<unsigned>(p.n_heads + 1));
  launch_overlapped("prepare_latent", prepare_latent_kernel, grid, 128,
                    (p.kv_rank + p.rope_dim) * sizeof(float), stream, p);
}

void attend(const Attend& a, cudaStream_t stream) {
  switch (a.kv) {
    case KvType::F32:
      return attend_typed<KvType::F32>(a, stream);
    case KvType::Bf16:
      return attend_typed<KvType::Bf16>(a, stream);
    case KvType::Q8:
      return attend_typed<KvType::Q8>(a, stream);
  }
}

}  // namespace moeflux::cuda
