#include <algorithm>

#include "cuda/device.h"
#include "cuda/gemm.cuh"
#include "cuda/linear.h"
#include "cuda/matvec.cuh"
#include "cuda/overlap.cuh"
#include "cuda/reduce.cuh"

namespace moeflux::cuda {
namespace {

// A product as its kernel sees it: the blocks of all its heads one after the other.
struct Job {
  Tiles m;
  const float* bias;
  const float* f;
  size_t stride;
  const int8_t* q;
  const QuantSpan* span;
  const int8_t* rest_q;
  const QuantSpan* rest_span;
  const uint32_t* pick;
  float* out;
  size_t out_stride, head_stride;
  uint32_t n, heads, first_row, rows, spans;
  uint32_t head_blocks;  // row blocks that a head may touch
  uint32_t end;          // its last block of the grid, plus one
  bool add;
  Unnormed unnormed;
};
constexpr size_t kMostProducts = 6;  // in one launch
struct Jobs {
  Job job[kMostProducts];
  uint32_t n;
};

struct Place {  // of a block of the grid
  const Job* job;
  uint32_t head, block, first, last;  // row block of the matrix; rows [first, last) of it belong to the head
};

__device__ Place locate(const Jobs& jobs, uint32_t index) {
  uint32_t i = 0;
  while (index >= jobs.job[i].end) ++i;
  const Job& job = jobs.job[i];
  const uint32_t at = index - (i ? jobs.job[i - 1].end : 0);
  const uint32_t head = at / job.head_blocks, first = job.first_row + head * job.rows;
  const uint32_t block = first / 16 + at % job.head_blocks, row = block * 16;
  return {&job, head, block, max(first, row), min(first + job.rows, row + 16)};
}

__device__ size_t vector_of(const Job& job, uint32_t t, uint32_t head) {
  return (job.pick ? job.pick[t] : t) * job.heads + head;
}

__device__ void write(const Place& at, uint32_t t, uint32_t row, float y) {
  const Job& job = *at.job;
  if (row < at.first || row >= at.last) return;
  if (job.bias) y = __fadd_rn(y, job.bias[row]);
  float* out =
      job.out + t * job.out_stride + at.head * job.head_stride + (row - job.first_row - at.head * job.rows);
  *out = job.add ? __fadd_rn(*out, y) : y;
}

// -- fast, few vectors: a block of threads per row block, a warp per chain

constexpr uint32_t kMatvecThreads = 256;

// The norm of a vector and its int8 form, as stage leaves it; threads have kQuads quads of columns each.
template <int kQuads>
struct Normed {
  float4 w[kQuads];

  __device__ void request(const Job& job) {  // what is known beforehand
#pragma unroll
    for (int k = 0; k < kQuads; ++k) w[k] = quad(job, job.unnormed.w, k);
  }

  __device__ void stage(const Job& job, void* memory) const {
    __shared__ __align__(16) float room[kMatvecThreads / 32];
    float4 x[kQuads];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kQuads; ++k) {
      x[k] = quad(job, job.unnormed.x, k);
      sum = fmaf(x[k].x, x[k].x, fmaf(x[k].y, x[k].y, fmaf(x[k].z, x[k].z, fmaf(x[k].w, x[k].w, sum))));
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
    __syncthreads();
    const float4 a = reinterpret_cast<const float4*>(room)[0], b = reinterpret_cast<const float4*>(room)[1];
    const float mean =
        (((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w))) / static_cast<float>(job.m.cols);
    const float inverse = __fdiv_rn(1.0f, sqrtf(mean + job.unnormed.eps));
    int8_t* q = static_cast<int8_t*>(memory);
    auto* spans = reinterpret_cast<QuantSpan*>(q + job.spans * 64);
#pragma unroll
    for (int k = 0; k < kQuads; ++k) {
      const uint32_t i = threadIdx.x + k * kMatvecThreads, s = i / 16;
      QuantSpan span;
      const int codes = quantise_span(make_float4(w[k].x * (x[k].x * inverse), w[k].y * (x[k].y * inverse),
                                                  w[k].z * (x[k].z * inverse), w[k].w * (x[k].w * inverse)),
                                      span);
      if (s >= job.spans) continue;
      reinterpret_cast<int*>(q)[i] = codes;
      if (i % 16 == 0) spans[s] = span;
    }
  }

 private:
  __device__ static float4 quad(const Job& job, const float* from, int k) {
    const uint32_t i = threadIdx.x + k * kMatvecThreads;
    return 4 * i < job.m.cols ? reinterpret_cast<const float4*>(from)[i] : make_float4(0, 0, 0, 0);
  }
};

// One vector, in shared memory; its weights are under way before the kernel ahead has ended. kQuads 0: the
// vector is there, else it is made here.
template <class C, int kAhead, int kQuads>
__global__ void __launch_bounds__(kMatvecThreads) matvec_kernel(const __grid_constant__ Jobs jobs) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ float sums[2][8][16];
  const Place at = locate(jobs, blockIdx.x);
  const Job& job = *at.job;
  const uint32_t chain = threadIdx.x / 32, part = threadIdx.x / 16 % 2, row = threadIdx.x % 16;
  const uint32_t block = min(at.block, static_cast<uint32_t>((job.m.rows - 1) / 16));
  const auto ready = [&] {
    let_next_begin();
    if constexpr (kQuads > 0) {
      Normed<kQuads> normed;
      normed.request(job);
      wait_for_previous();
      normed.stage(job, memory);
      return __syncthreads();
    }
    wait_for_previous();
    const size_t vector = vector_of(job, 0, at.head);
    stage({job.q, job.span}, vector, job.spans, memory);
    if (job.rest_q) stage({job.rest_q, job.rest_span}, vector, job.spans, memory + staged_bytes(job.spans));
    __syncthreads();
  };
  const Quantised x[] = {staged(memory, job.spans)};
  const BlockSpans blocks[] = {BlockSpans(job.m, block)};
  float c[1][1];
  chain_sums<C, 2, kAhead>(job.m, blocks, row, part, chain, x, ready, c);
  if (part == 0) sums[0][chain][row] = c[0][0];
  const bool fine = kQuads == 0 && job.rest_q;
  if (fine) {
    const Quantised rest[] = {staged(memory + staged_bytes(job.spans), job.spans)};
    chain_sums<C, 2, kAhead>(
        job.m, blocks, row, part, chain, rest, [] {}, c);
    if (part == 0) sums[1][chain][row] = c[0][0];
  }
  __syncthreads();
  if (threadIdx.x >= 16) return;
  float y = chain_tree(sums[0], row);
  if (fine) y = __fadd_rn(y, chain_tree(sums[1], row));
  write(at, 0, at.block * 16 + row, y);
}

// Several vectors, from where they lie.
template <class C, int kVectors>
__global__ void __launch_bounds__(256) few_kernel(const __grid_constant__ Jobs jobs) {
  __shared__ float sums[kVectors][2][8][16];
  const Place at = locate(jobs, blockIdx.x);
  const Job& job = *at.job;
  wait_for_previous();
  let_next_begin();
  const uint32_t chain = threadIdx.x / 32, part = threadIdx.x / 16 % 2, row = threadIdx.x % 16,
                 first = blockIdx.y * kVectors;
  if (first >= job.n || at.first >= at.last) return;
  for (int pass = 0; pass < (job.rest_q ? 2 : 1); ++pass) {
    Quantised x[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const size_t from = vector_of(job, min(first + v, job.n - 1), at.head) * job.spans;
      x[v] = {(pass ? job.rest_q : job.q) + from * 64, (pass ? job.rest_span : job.span) + from};
    }
    const BlockSpans blocks[] = {BlockSpans(job.m, at.block)};
    float c[1][kVectors];
    chain_sums<C, 2, 4>(
        job.m, blocks, row, part, chain, x, [] {}, c);
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (part == 0) sums[v][pass][chain][row] = c[0][v];
  }
  __syncthreads();
  const uint32_t v = threadIdx.x / 16;
  if (v >= kVectors || first + v >= job.n) return;
  float y = chain_tree(sums[v][0], row);
  if (job.rest_q) y = __fadd_rn(y, chain_tree(sums[v][1], row));
  write(at, first + v, at.block * 16 + row, y);
}

// -- exact

template <MatrixType kType, int kVectors>
__global__ void __launch_bounds__(256) exact_kernel(const __grid_constant__ Jobs jobs) {
  constexpr int kEach = kWide<kType>;
  __shared__ float sums[kVectors][16][17];
  const Place at = locate(jobs, blockIdx.x);
  const Job& job = *at.job;
  wait_for_previous();
  let_next_begin();
  const uint32_t phase = threadIdx.x / 16, row = threadIdx.x % 16, first = blockIdx.y * kVectors;
  if (first >= job.n || at.first >= at.last) return;
  const float* x[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    x[v] = job.f + vector_of(job, min(first + v, job.n - 1), at.head) * job.stride;
  float c[kVectors][kEach];
  exact_sums<kType>(job.m, at.block, row, phase, x, c);
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int b = 0; b < kEach; ++b) sums[v][kEach * phase + b][row] = c[v][b];
  __syncthreads();
  for (uint32_t v = phase; v < kVectors && first + v < job.n; v += blockDim.x / 16)
    write(at, first + v, at.block * 16 + row, exact_tree(sums[v], row));
}

// One vector and few rows of a plain format, such as a router: a warp for two rows, a lane for each of their
// sums. Time goes into waiting, so all weights of a width of 2048 are requested at once.
constexpr uint32_t kFewRowsThreads = 128;

template <MatrixType kType>
__global__ void __launch_bounds__(kFewRowsThreads) few_rows_kernel(const __grid_constant__ Jobs jobs) {
  constexpr uint32_t kAhead = 32, kEach = kWide<kType>;
  extern __shared__ __align__(16) float vector[];  // zeros beyond its end, up to a whole span
  const Place at = locate(jobs, blockIdx.x / 2);
  const Job& job = *at.job;
  const uint32_t sum = threadIdx.x % 32 / 2,
                 row = blockIdx.x % 2 * 8 + threadIdx.x / 32 * 2 + threadIdx.x % 2;
  const uint32_t block = min(at.block, static_cast<uint32_t>((job.m.rows - 1) / 16));
  const uint8_t* codes = BlockSpans(job.m, block).data + (sum / kEach * 64 + row * 4);
  float c = 0;
  for (uint32_t begin = 0; begin < job.spans; begin += kAhead) {
    uint32_t w[kAhead][4];
#pragma unroll
    for (uint32_t s = 0; s < kAhead; ++s)
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint8_t* from = codes + ((begin + s) * (4096 / kEach) + i * (1024 / kEach));
        w[s][i] = begin + s < job.spans ? __ldg(reinterpret_cast<const uint32_t*>(from)) : 0;
      }
    if (begin == 0) {
      let_next_begin();
      wait_for_previous();
      const float* x = job.f + vector_of(job, 0, at.head) * job.stride;
      const uint32_t cols = static_cast<uint32_t>(job.m.cols);
#pragma unroll 16
      for (uint32_t i = threadIdx.x; i < job.spans * 64; i += kFewRowsThreads)
        vector[i] = i < cols ? x[i] : 0.0f;
      __syncthreads();
    }
#pragma unroll
    for (uint32_t s = 0; s < kAhead; ++s)
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t col = min(begin + s, job.spans - 1) * 64 + 16 * i + sum;
        c = __fadd_rn(c, __fmul_rn(plain_value<kType>(w[s][i], sum % kEach), vector[col]));
      }
  }
#pragma unroll
  for (uint32_t half = 16; half > 1; half /= 2) c = __fadd_rn(c, __shfl_down_sync(0xffffffff, c, half));
  if (sum == 0) write(at, 0, at.block * 16 + row, c);
}

// Many vectors of a plain format: two row blocks and eight vectors at a time, so that what is read is used
// often. One job; its rows begin with a block. kPairs: two columns of a vector can be read at once.
template <MatrixType kType, bool kPairs>
__global__ void __launch_bounds__(256 / kWide<kType>) plain_many_kernel(const __grid_constant__ Jobs jobs) {
  constexpr uint32_t kEach = kWide<kType>, kBlocks = 2, kVectors = 8;
  __shared__ float sums[kVectors][16][17];
  const Job& job = jobs.job[0];
  wait_for_previous();
  let_next_begin();
  const uint32_t phase = threadIdx.x / 16, row = threadIdx.x % 16, first = blockIdx.y * kVectors,
                 block = job.first_row / 16 + blockIdx.x * kBlocks;
  const float* x[kVectors];
#pragma unroll
  for (uint32_t v = 0; v < kVectors; ++v)
    x[v] = job.f + vector_of(job, min(first + v, job.n - 1), 0) * job.stride + kEach * phase;
  const uint8_t* codes[kBlocks];
#pragma unroll
  for (uint32_t k = 0; k < kBlocks; ++k) {
    const uint32_t mine = min(block + k, static_cast<uint32_t>((job.m.rows - 1) / 16));
    codes[k] = BlockSpans(job.m, mine).data + (phase * 64 + row * 4);
  }
  float c[kBlocks][kVectors][kEach] = {};
  const auto add = [&](uint32_t s, auto whole) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t w[kBlocks];
#pragma unroll
      for (uint32_t k = 0; k < kBlocks; ++k)
        w[k] = __ldg(reinterpret_cast<const uint32_t*>(codes[k] + (s * (4096 / kEach) + i * (1024 / kEach))));
      const uint32_t col = s * 64 + 16 * i;
#pragma unroll
      for (uint32_t v = 0; v < kVectors; ++v) {
        float value[kEach];
        if constexpr (kPairs && whole()) {
          const float2 two = *reinterpret_cast<const float2*>(x[v] + col);
          value[0] = two.x, value[kEach - 1] = two.y;
        } else {
#pragma unroll
          for (uint32_t b = 0; b < kEach; ++b)
            value[b] = whole() || col + kEach * phase + b < job.m.cols ? x[v][col + b] : 0.0f;
        }
#pragma unroll
        for (uint32_t b = 0; b < kEach; ++b)
#pragma unroll
          for (uint32_t k = 0; k < kBlocks; ++k)
            c[k][v][b] = __fadd_rn(c[k][v][b], __fmul_rn(plain_value<kType>(w[k], b), value[b]));
      }
    }
  };
  const uint32_t whole = static_cast<uint32_t>(job.m.cols / 64);
  for (uint32_t s = 0; s < whole; ++s) add(s, std::true_type{});
  if (whole < job.spans) add(whole, std::false_type{});
#pragma unroll
  for (uint32_t k = 0; k < kBlocks; ++k) {
    __syncthreads();
#pragma unroll
    for (uint32_t v = 0; v < kVectors; ++v)
#pragma unroll
      for (uint32_t b = 0; b < kEach; ++b) sums[v][kEach * phase + b][row] = c[k][v][b];
    __syncthreads();
    const uint32_t begin = (block + k) * 16;
    const Place at{&job, 0, block + k, begin, min(job.first_row + job.rows, begin + 16)};
    for (uint32_t v = phase; v < kVectors && first + v < job.n; v += blockDim.x / 16)
      write(at, first + v, begin + row, exact_tree(sums[v], row));
  }
}

// -- small ones

__global__ void quantise_kernel(Vectors x, Vectors rest) {
  const size_t spans = span_count(x.cols), half_warps = blockDim.x / 16;
  const size_t item = blockIdx.x * half_warps + threadIdx.x / 16, t = item / spans, s = item % spans;
  const bool mine = item < x.n * spans;
  const size_t col = s * 64 + threadIdx.x % 16 * 4;
  float v[4] = {};
  for (size_t i = 0; mine && i < 4; ++i)
    if (col + i < x.cols) v[i] = x.f[t * x.stride + col + i];
  Vectors to = x;
  if (rest.q) {
    const int8_t* q = x.q + item * 64 + threadIdx.x % 16 * 4;
    for (size_t i = 0; mine && i < 4; ++i) v[i] = __fmaf_rn(-x.span[item].xs, static_cast<float>(q[i]), v[i]);
    to = rest;
  }
  QuantSpan span;
  const int codes = quantise_span(make_float4(v[0], v[1], v[2], v[3]), span);
  if (!mine) return;
  reinterpret_cast<int*>(to.q)[item * 16 + threadIdx.x % 16] = codes;
  if (threadIdx.x % 16 == 0) to.span[item] = span;
}

void launch_quantise(const Vectors& x, const Vectors& rest, cudaStream_t stream) {
  const size_t items = x.n * span_count(x.cols);
  if (items == 0) return;
  quantise_kernel<<<static_cast<unsigned>((items + 7) / 8), 128, 0, stream>>>(x, rest);
  check_launch("quantise");
}

// One element; slow, for what is small or read once.
template <MatrixType kType>
__device__ float element(const Tiles& m, size_t row, uint32_t col) {
  constexpr uint32_t kEach = kWide<kType>;
  float w[4][kEach];
  const uint32_t c = col % 64;
  decode_span<kType>(m, row / 16, col / 64, row % 16, c % 16 / kEach, w);
  float value = 0;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
#pragma unroll
    for (uint32_t b = 0; b < kEach; ++b)
      if (i == c / 16 && b == c % kEach) value = w[i][b];
  return value;
}

template <MatrixType kType>
__global__ void transposed_kernel(Tiles m, TransposedProduct p) {
  const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
  const size_t h = blockIdx.y, t = blockIdx.z;
  if (c >= m.cols) return;
  const float* x = p.x + t * p.x_stride + h * p.x_head;
  float sum = 0;
  for (size_t r = 0; r < p.rows; ++r)
    sum = __fadd_rn(sum, __fmul_rn(element<kType>(m, h * p.rows + r, c), x[r]));
  p.out[t * p.out_stride + h * p.out_head + c] = sum;
}

template <MatrixType kType>
__global__ void rows_kernel(Tiles m, const uint32_t* ids, float* out, size_t out_stride) {
  const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < m.cols) out[blockIdx.y * out_stride + c] = element<kType>(m, ids[blockIdx.y], c);
}

Job make_job(const Product& p) {
  const size_t rows = p.rows ? p.rows : p.w.rows;
  const bool aligned = p.first_row % kTileRows == 0 && (rows % kTileRows == 0 || p.heads == 1);
  const bool fine = !p.exact && p.rest.q && has_integer_codes(p.w.format);
  return {.m = tiles_of(p.w),
          .bias = p.bias,
          .f = p.x.f,
          .stride = p.x.stride,
          .q = p.x.q,
          .span = p.x.span,
          .rest_q = fine ? p.rest.q : nullptr,
          .rest_span = p.rest.span,
          .pick = p.pick,
          .out = p.out,
          .out_stride = p.out_stride,
          .head_stride = p.head_stride,
          .n = static_cast<uint32_t>(p.pick ? p.n_picks : p.x.n / p.heads),
          .heads = static_cast<uint32_t>(p.heads),
          .first_row = static_cast<uint32_t>(p.first_row),
          .rows = static_cast<uint32_t>(rows),
          .spans = static_cast<uint32_t>(span_count(p.w.cols)),
          .head_blocks = static_cast<uint32_t>((rows + kTileRows - 1) / kTileRows + (aligned ? 0 : 1)),
          .end = 0,
          .add = p.add,
          .unnormed = p.unnormed};
}

bool is_fast(const Product& p) { return !p.exact && has_integer_codes(p.w.format); }

constexpr size_t kFewVectors = 24, kFewRows = 1024;

// Rows that begin or end inside a block are in no published model; the kernel for few vectors takes them.
bool for_gemm(const Product& p) {
  const Job job = make_job(p);
  return is_fast(p) && job.n > kFewVectors && job.first_row % kTileRows == 0 &&
         (job.heads == 1 || job.rows % kTileRows == 0) && !(job.rest_q && job.add);
}

void gemm(const Product& p, cudaStream_t stream) {
  const Job job = make_job(p);
  GemmJob g{};
  g.m = job.m;
  g.bias = job.rest_q ? nullptr : job.bias;
  g.x = {job.q, job.span};
  g.rows = {.pick = job.pick, .n = job.n, .heads = job.heads};
  g.first_row = job.first_row;
  g.n_rows = job.rows;
  g.out = job.out;
  g.out_stride = job.out_stride;
  g.head_stride = job.head_stride;
  g.add = job.add;
  with_codes(p.w.format, [&](auto codes) {
    const size_t tiles = (job.n + kGemmVectors - 1) / kGemmVectors;
    launch_gemm<decltype(codes), false>(g, tiles, stream);
    if (!job.rest_q) return;
    g.bias = job.bias;
    g.x = {job.rest_q, job.rest_span};
    g.behind = true;
    launch_gemm<decltype(codes), false>(g, tiles, stream);
  });
}

bool same_kernel(const Product& a, const Product& b) {
  if (is_fast(a) != is_fast(b)) return false;
  return is_fast(a) ? a.w.format == b.w.format : a.w.format.type == b.w.format.type;
}

struct Launch {
  unsigned threads, vectors = 1;  // per block of threads
  unsigned parts = 1;             // blocks of threads per row block
  size_t shared_bytes = 0;
};

template <class Kernel>
void launch(Kernel kernel, Jobs& jobs, const Launch& l, const char* what, cudaStream_t stream) {
  uint32_t end = 0, most = 0;
  for (uint32_t i = 0; i < jobs.n; ++i) {
    Job& job = jobs.job[i];
    job.end = end += job.heads * job.head_blocks;
    most = std::max(most, job.n);
  }
  if (end == 0 || most == 0) return;
  launch_overlapped(what, kernel, dim3(end * l.parts, (most + l.vectors - 1) / l.vectors), l.threads,
                    l.shared_bytes, stream, jobs);
}

// Quads of a thread that makes the norm: enough for rows of 2048 and of 8192.
constexpr int kFewQuads = 2, kManyQuads = 8;
constexpr size_t kPlainShared = 40 << 10;  // bytes that need no leave and let blocks share a multiprocessor

void launch_fast(Jobs& jobs, const MatrixFormat& format, bool many, cudaStream_t stream) {
  size_t bytes = 0, spans = 0;
  for (uint32_t i = 0; i < jobs.n; ++i) {
    spans = std::max<size_t>(spans, jobs.job[i].spans);
    bytes = std::max(bytes, staged_bytes(jobs.job[i].spans) * (jobs.job[i].rest_q ? 2 : 1));
  }
  with_codes(format, [&](auto codes) {
    using C = decltype(codes);
    const auto one = [&](auto kernel) {
      launch(kernel, jobs, {kMatvecThreads, 1, 1, bytes}, "product of a vector", stream);
    };
    if (jobs.job[0].unnormed.x)
      spans > 32 ? one(matvec_kernel<C, 8, kManyQuads>) : one(matvec_kernel<C, 4, kFewQuads>);
    else if (many || bytes > kPlainShared)
      launch(few_kernel<C, 4>, jobs, {256, 4}, "product of a few vectors", stream);
    else
      spans > 32 ? one(matvec_kernel<C, 8, 0>) : one(matvec_kernel<C, 4, 0>);
  });
}

void launch_exact(Jobs& jobs, MatrixType matrix_type, bool many, cudaStream_t stream) {
  size_t rows = 0, bytes = 0;
  for (uint32_t i = 0; i < jobs.n; ++i) {
    rows += size_t{jobs.job[i].rows} * jobs.job[i].heads;
    bytes = std::max<size_t>(bytes, jobs.job[i].spans * 64 * sizeof(float));
  }
  with_type(matrix_type, [&](auto type) {
    constexpr unsigned kThreads = 256 / kWide<type()>;
    if constexpr (kWide<type()> < 4) {
      if (!many && rows <= kFewRows && bytes <= kPlainShared)
        return launch(few_rows_kernel<type()>, jobs, {kFewRowsThreads, 1, 2, bytes},
                      "exact product of few rows", stream);
      if (many && jobs.n == 1 && jobs.job[0].heads == 1 && jobs.job[0].first_row % kTileRows == 0) {
        const Job& job = jobs.job[0];
        const dim3 grid((job.rows + 2 * kTileRows - 1) / (2 * kTileRows), (job.n + 7) / 8);
        const bool pairs =
            kWide<type()> == 2 && job.stride % 2 == 0 && reinterpret_cast<uintptr_t>(job.f) % 8 == 0;
        return launch_overlapped(
            "exact product of vectors",
            pairs ? plain_many_kernel<type(), kWide<type()> == 2> : plain_many_kernel<type(), false>, grid,
            kThreads, 0, stream, jobs);
      }
    }
    if (many) return launch(exact_kernel<type(), 8>, jobs, {kThreads, 8}, "exact product of vectors", stream);
    launch(exact_kernel<type(), 1>, jobs, {kThreads}, "exact product of a vector", stream);
  });
}

}  // namespace

void quantise(const Vectors& x, cudaStream_t stream) { launch_quantise(x, {}, stream); }

void quantise_rest(const Vectors& x, const Vectors& rest, cudaStream_t stream) {
  launch_quantise(x, rest, stream);
}

bool can_norm(std::span<const Product> products) {
  return products.size() <= kMostProducts && std::ranges::all_of(products, [&](const Product& p) {
           return is_fast(p) && same_kernel(p, products[0]) && p.x.n == 1 && p.heads == 1 && !p.pick &&
                  !p.rest.q && p.w.cols % 4 == 0 && p.w.cols <= 4 * kManyQuads * kMatvecThreads &&
                  staged_bytes(span_count(p.w.cols)) <= kPlainShared;
         });
}

void linear(std::span<const Product> products, cudaStream_t stream) {
  uint64_t done = 0;  // a bit per product
  for (size_t i = 0; i < products.size(); ++i)
    if (for_gemm(products[i])) {
      gemm(products[i], stream);
      done |= uint64_t{1} << i;
    }
  for (size_t i = 0; i < products.size(); ++i) {
    if (done >> i & 1) continue;
    Jobs jobs{};
    bool many = false;
    for (size_t j = i; j < products.size() && jobs.n < kMostProducts; ++j) {
      if (done >> j & 1 || !same_kernel(products[i], products[j])) continue;
      done |= uint64_t{1} << j;
      const Job job = make_job(products[j]);
      if (job.n == 0) continue;
      many |= job.n > 1;
      jobs.job[jobs.n++] = job;
    }
    const MatrixFormat& format = products[i].w.format;
    if (is_fast(products[i]))
      launch_fast(jobs, format, many, stream);
    else
      launch_exact(jobs, format.type, many, stream);
  }
}

void linear_transposed(const TransposedProduct& p, cudaStream_t stream) {
  if (p.n == 0) return;
  with_type(p.w.format.type, [&](auto type) {
    const dim3 grid(static_cast<unsigned>((p.w.cols + 127) / 128), static_cast<unsigned>(p.heads),
                    static_cast<unsigned>(p.n));
    transposed_kernel<type()><<<grid, 128, 0, stream>>>(tiles_of(p.w), p);
  });
  check_launch("transposed product");
}

void dequantise_rows(const MatrixView& m, const uint32_t* ids, size_t n, float* out, size_t out_stride,
                     cudaStream_t stream) {
  if (n == 0) return;
  with_type(m.format.type, [&](auto type) {
    const dim3 grid(static_cast<unsigned>((m.cols + 255) / 256), static_cast<unsigned>(n));
    rows_kernel<type()><<<grid, 256, 0, stream>>>(tiles_of(m), ids, out, out_stride);
  });
  check_launch("decoding of rows");
}

}  // namespace moeflux::cuda
