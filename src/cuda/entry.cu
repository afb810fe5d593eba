#include "cuda/entry.h"
#include "cuda/matvec.cuh"
#include "cuda/overlap.cuh"
#include "cuda/router.cuh"
#include "cuda/span.cuh"

namespace moeflux::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr size_t kMostTokens = 8, kMostShared = 96u << 10;

// A block has 16 rows of a matrix and 4 of the 16 partial sums of each (ops/linear.h): columns congruent to
// them modulo 16. The last of all blocks adds up, and one more block makes the vectors for other kernels.
struct Job {
  Tiles m;
  const float* bias;
  float* out;
  unsigned rows, blocks;  // row blocks
};
struct Jobs {
  Job job[2];
  unsigned n;  // tokens
  unsigned cols, rows;
  const float *x, *w;
  float eps;
  Vectors h, rest;
  bool routes;
  DeviceRule rule;
  uint32_t* ids;
  float* weights;
  float* sums;  // [n][rows][16]
  uint32_t* counter;
};

// Weights of row block `block`, partial sums 4 quad .. + 3, as [column / 16][4][16 rows]. Loads do not depend
// on each other: the loop is unrolled so that many are under way at once.
template <MatrixType kType>
__device__ void stage(const Tiles& m, unsigned block, unsigned quad, float* to) {
  constexpr unsigned kEach = kWide<kType>, kPhases = 4 / kEach;
  const unsigned items = static_cast<unsigned>((m.cols + 63) / 64) * 16 * kPhases;
#pragma unroll 8
  for (unsigned i = threadIdx.x; i < items; i += kThreads) {
    const unsigned row = i % 16, phase = i / 16 % kPhases, s = i / 16 / kPhases;
    float w[4][kEach];
    decode_span<kType>(m, block, s, row, quad * kPhases + phase, w);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k)
#pragma unroll
      for (unsigned b = 0; b < kEach; ++b) to[(s * 4 + k) * 64 + (phase * kEach + b) * 16 + row] = w[k][b];
  }
}

// The common form is known to the compiler, which can then read ahead.
template <MatrixType kType>
__device__ void stage_affine(const Tiles& m, unsigned block, unsigned quad, float* to) {
  if (m.scale != ScaleType::Bf16 || m.group != 64) return stage<kType>(m, block, quad, to);
  Tiles common = m;
  common.scale = ScaleType::Bf16;
  common.group = 64;
  common.tile_spans = 1;
  stage<kType>(common, block, quad, to);
}

__device__ void stage_any(const Tiles& m, unsigned block, unsigned quad, float* to) {
  switch (m.type) {
    case MatrixType::F32:
      return stage<MatrixType::F32>(m, block, quad, to);
    case MatrixType::F16:
      return stage<MatrixType::F16>(m, block, quad, to);
    case MatrixType::Bf16:
      return stage<MatrixType::Bf16>(m, block, quad, to);
    case MatrixType::Affine4:
      return stage_affine<MatrixType::Affine4>(m, block, quad, to);
    default:
      return stage_affine<MatrixType::Affine8>(m, block, quad, to);
  }
}

__device__ float inverse_rms(const Jobs& j, const float* x, float* room) {
  float sum = 0;
#pragma unroll 16
  for (unsigned i = threadIdx.x; i < j.cols; i += kThreads) sum = fmaf(x[i], x[i], sum);
  return __fdiv_rn(1.0f, sqrtf(block_sum(sum, room) / static_cast<float>(j.cols) + j.eps));
}

__device__ void write_vectors(const Jobs& j, float* room) {
  for (unsigned t = 0; t < j.n; ++t) {
    const float* x = j.x + size_t{t} * j.cols;
    const float inverse = inverse_rms(j, x, room);
    for (unsigned i = threadIdx.x; i < quad_lanes(j.cols); i += kThreads) {
      float v[4] = {};
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (4 * i + k < j.cols)
          j.h.f[t * j.h.stride + 4 * i + k] = v[k] = j.w[4 * i + k] * (x[4 * i + k] * inverse);
      if (!j.h.q) continue;
      QuantSpan span;
      const int codes = quantise_span(make_float4(v[0], v[1], v[2], v[3]), span);
      const size_t spans = span_count(j.cols), s = i / 16, at = t * spans + s;
      if (s < spans) {
        reinterpret_cast<int*>(j.h.q)[at * 16 + i % 16] = codes;
        if (i % 16 == 0) j.h.span[at] = span;
      }
      if (!j.rest.q) continue;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        v[k] = 4 * i + k < j.cols
                   ? __fmaf_rn(-span.xs, static_cast<float>(static_cast<int8_t>(codes >> (8 * k))), v[k])
                   : 0.0f;
      store_quantised(make_float4(v[0], v[1], v[2], v[3]), j.rest, t, i);
    }
  }
}

__device__ float tree(const float* sums) {
  float s[16];
#pragma unroll
  for (int l = 0; l < 16; ++l) s[l] = __ldcg(sums + l);  // other blocks have written them
#pragma unroll
  for (int half = 8; half > 0; half /= 2)
#pragma unroll
    for (int l = 0; l < half; ++l) s[l] = __fadd_rn(s[l], s[l + half]);
  return s[0];
}

// By the last block: sums of all rows, and the choice.
__device__ void conclude(const Jobs& j, float* logits, float* room) {
  for (unsigned t = 0; t < j.n; ++t) {
    for (unsigned r = threadIdx.x; r < j.rows; r += kThreads) {
      const bool second = r >= j.job[0].rows;
      const Job& job = j.job[second];
      const unsigned row = second ? r - j.job[0].rows : r;
      float y = tree(j.sums + (size_t{t} * j.rows + r) * 16);
      if (job.bias) y = __fadd_rn(y, job.bias[row]);
      job.out[size_t{t} * job.rows + row] = y;
      logits[r] = y;
    }
    __syncthreads();
    if (j.routes && threadIdx.x < 32)
      route_token(j.rule, logits, room, threadIdx.x, j.ids + t * j.rule.top_k, j.weights + t * j.rule.top_k);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) entry_kernel(const __grid_constant__ Jobs j) {
  extern __shared__ float shared[];
  __shared__ float room[33];
  __shared__ bool last;
  const unsigned quads = 4 * (j.job[0].blocks + j.job[1].blocks);
  if (blockIdx.x == quads) {
    wait_for_previous();
    let_next_begin();
    return write_vectors(j, room);
  }
  const bool second = blockIdx.x >= 4 * j.job[0].blocks;
  const Job& job = j.job[second];
  const unsigned at = blockIdx.x - (second ? 4 * j.job[0].blocks : 0), block = at / 4, quad = at % 4;
  const unsigned steps = (j.cols + 63) / 64 * 4;
  float *weights = shared, *h = shared + steps * 64;  // h: [steps][4]
  stage_any(job.m, block, quad, weights);             // they do not depend on what comes before
  wait_for_previous();
  let_next_begin();
  for (unsigned t = 0; t < j.n; ++t) {
    const float* x = j.x + size_t{t} * j.cols;
    const float inverse = inverse_rms(j, x, room);
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < steps * 4; i += kThreads) {
      const unsigned c = i / 4 * 16 + quad * 4 + i % 4;
      h[i] = c < j.cols ? j.w[c] * (x[c] * inverse) : 0.0f;
    }
    __syncthreads();
    if (threadIdx.x < 64) {
      const unsigned cls = threadIdx.x / 16, row = threadIdx.x % 16;
      float c = 0;
#pragma unroll 16
      for (unsigned k = 0; k < steps; ++k)
        c = __fadd_rn(c, __fmul_rn(weights[k * 64 + threadIdx.x], h[k * 4 + cls]));
      if (block * 16 + row < job.rows)
        j.sums[(size_t{t} * j.rows + (second ? j.job[0].rows : 0) + block * 16 + row) * 16 + quad * 4 + cls] =
            c;
    }
    __syncthreads();
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(j.counter, quads - 1) == quads - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  conclude(j, shared, shared + j.rows);
}

size_t shared_floats(const Entry& e) {
  const size_t steps = (e.h.cols + 63) / 64 * 4, rows = e.small[0].w.rows + e.small[1].w.rows;
  const size_t end = rows + (e.rule ? route_room(e.small[0].w.rows, e.rule->n_groups) : 0);
  return std::max(steps * 68, end);
}

bool small_can(const MatrixView& m) {
  return !m || (m.format.type != MatrixType::Mxfp4 && m.format.type != MatrixType::Fp8);
}

}  // namespace

bool entry_can(const Entry& e) {
  return e.h.n <= kMostTokens && e.small[0].w && small_can(e.small[0].w) && small_can(e.small[1].w) &&
         shared_floats(e) * sizeof(float) <= kMostShared;
}

size_t entry_sums(const Entry& e) { return e.h.n * (e.small[0].w.rows + e.small[1].w.rows) * 16; }

void enter(const Entry& e, cudaStream_t stream) {
  Jobs j{};
  for (unsigned i = 0; i < 2; ++i) {
    const Entry::Small& s = e.small[i];
    if (!s.w) continue;
    j.job[i] = {tiles_of(s.w), s.bias, s.out, static_cast<unsigned>(s.w.rows),
                static_cast<unsigned>(s.w.n_row_blocks())};
    j.rows += j.job[i].rows;
  }
  j.n = static_cast<unsigned>(e.h.n);
  j.cols = static_cast<unsigned>(e.h.cols);
  j.x = e.x;
  j.w = e.w;
  j.eps = e.eps;
  j.h = e.h;
  j.rest = e.rest;
  j.routes = e.rule != nullptr;
  if (e.rule) j.rule = device_rule(*e.rule, e.small[0].w.rows);
  j.ids = e.ids;
  j.weights = e.weights;
  j.sums = e.sums;
  j.counter = e.counter;
  const size_t bytes = shared_floats(e) * sizeof(float);
  check_cuda(cudaFuncSetAttribute(entry_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "shared memory of a stage's start");
  launch_overlapped("entry", entry_kernel, 4 * (j.job[0].blocks + j.job[1].blocks) + 1, kThreads, bytes,
                    stream, j);
}

}  // namespace moeflux::cuda
