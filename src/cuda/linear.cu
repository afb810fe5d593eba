#include <algorithm>

#include "cuda/device.h"
#include "cuda/gemm.cuh"
#include "cuda/linear.h"
#include "cuda/matvec.cuh"
#include "cuda/overlap.cuh"

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

// What a kernel of this file does first.
__device__ void begin(const Place& at) {
  const Tiles& m = at.job->m;
  if (threadIdx.x == 0 && at.first < at.last) {
    const size_t bytes = m.n_tiles * m.tile_bytes;
    fetch_ahead(m.data + at.block * bytes, bytes);
  }
  let_next_begin();
  wait_for_previous();
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

// -- fast, few vectors: a block of threads per row block

template <class C, int kAhead, int kVectors>
__global__ void __launch_bounds__(128) matvec_kernel(const __grid_constant__ Jobs jobs) {
  __shared__ float sums[kVectors][2][8][16];
  const Place at = locate(jobs, blockIdx.x);
  const Job& job = *at.job;
  begin(at);
  const uint32_t chain = threadIdx.x / 16, row = threadIdx.x % 16, first = blockIdx.y * kVectors;
  if (first >= job.n || at.first >= at.last) return;
  size_t vector[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) vector[v] = vector_of(job, min(first + v, job.n - 1), at.head);

  for (int pass = 0; pass < (job.rest_q ? 2 : 1); ++pass) {
    const Quantised x{pass ? job.rest_q : job.q, pass ? job.rest_span : job.span};
    float c[kVectors];
    chain_sums<C, kAhead>(job.m, at.block, row, chain, x, vector, c);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) sums[v][pass][chain][row] = c[v];
  }
  __syncthreads();
  const uint32_t v = chain;
  if (v >= kVectors || first + v >= job.n) return;
  float y = chain_tree(sums[v][0], row);
  if (job.rest_q) y = __fadd_rn(y, chain_tree(sums[v][1], row));
  write(at, first + v, at.block * 16 + row, y);
}

// -- exact

// kRows of the 16 rows of a block: fewer where there are so few rows that threads would wait for memory.
template <MatrixType kType, int kVectors, int kRows>
__global__ void __launch_bounds__(256) exact_kernel(const __grid_constant__ Jobs jobs) {
  constexpr int kEach = kWide<kType>;
  __shared__ float sums[kVectors][16][17];
  const Place at = locate(jobs, blockIdx.x / (16 / kRows));
  const Job& job = *at.job;
  begin(at);
  const uint32_t phase = threadIdx.x / kRows, row = threadIdx.x % kRows + blockIdx.x % (16 / kRows) * kRows,
                 first = blockIdx.y * kVectors;
  if (first >= job.n || at.first >= at.last) return;
  const float* x[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    x[v] = job.f + vector_of(job, min(first + v, job.n - 1), at.head) * job.stride;
  float c[kVectors][kEach];
  exact_sums<kType, kRows == 16 ? 4 : 16>(job.m, at.block, row, phase, x, c);
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int b = 0; b < kEach; ++b) sums[v][kEach * phase + b][row] = c[v][b];
  __syncthreads();
  for (uint32_t v = phase; v < kVectors && first + v < job.n; v += blockDim.x / kRows)
    write(at, first + v, at.block * 16 + row, exact_tree(sums[v], row));
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
          .add = p.add};
}

bool is_fast(const Product& p) { return !p.exact && has_integer_codes(p.w.format); }

constexpr size_t kFewVectors = 8, kFewRows = 1024;

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

// Jobs for one kernel, `vectors` vectors at a time, a row block in `parts` parts.
template <class Kernel>
void launch(Kernel kernel, Jobs& jobs, unsigned threads, unsigned vectors, const char* what,
            cudaStream_t stream, unsigned parts = 1) {
  uint32_t end = 0, most = 0;
  for (uint32_t i = 0; i < jobs.n; ++i) {
    Job& job = jobs.job[i];
    job.end = end += job.heads * job.head_blocks;
    most = std::max(most, job.n);
  }
  if (end == 0 || most == 0) return;
  launch_overlapped(what, kernel, dim3(end * parts, (most + vectors - 1) / vectors), threads, 0, stream,
                    jobs);
}

}  // namespace

void quantise(const Vectors& x, cudaStream_t stream) { launch_quantise(x, {}, stream); }

void quantise_rest(const Vectors& x, const Vectors& rest, cudaStream_t stream) {
  launch_quantise(x, rest, stream);
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
    bool many = false, wide = false;
    size_t rows = 0;
    for (size_t j = i; j < products.size() && jobs.n < kMostProducts; ++j) {
      if (done >> j & 1 || !same_kernel(products[i], products[j])) continue;
      done |= uint64_t{1} << j;
      const Job& job = jobs.job[jobs.n++] = make_job(products[j]);
      many |= job.n > 1;
      wide |= job.spans > 32;
      rows += size_t{job.rows} * job.heads;
    }
    const MatrixFormat& format = products[i].w.format;
    if (is_fast(products[i]))
      with_codes(format, [&](auto codes) {
        using C = decltype(codes);
        if (many)
          launch(matvec_kernel<C, 4, 4>, jobs, 128, 4, "product of a few vectors", stream);
        else if (wide)
          launch(matvec_kernel<C, 8, 1>, jobs, 128, 1, "product of a vector", stream);
        else
          launch(matvec_kernel<C, 4, 1>, jobs, 128, 1, "product of a vector", stream);
      });
    else
      with_type(format.type, [&](auto type) {
        constexpr unsigned kThreads = 256 / kWide<type()>;
        constexpr bool kPlain = kWide<type()> < 4;
        if (many)
          launch(exact_kernel<type(), 8, 16>, jobs, kThreads, 8, "exact product of vectors", stream);
        else if (kPlain && rows <= kFewRows)
          launch(exact_kernel < type(), 1, kPlain ? 4 : 16 >, jobs, kThreads / 4, 1,
                 "exact product of a vector", stream, 4);
        else
          launch(exact_kernel<type(), 1, 16>, jobs, kThreads, 1, "exact product of a vector", stream);
      });
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
