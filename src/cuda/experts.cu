#include "cuda/experts.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/expert_parts.cuh"
#include "cuda/gemm.cuh"
#include "cuda/matvec.cuh"
#include "cuda/overlap.cuh"
#include "cuda/token_experts.h"

namespace moeflux::cuda {
namespace {

// A vector of floats, aligned to 16 bytes, to its staged form: by `halves` halves of warps, of which this is
// number `half`.
__device__ void quantise_to(const float* x, uint32_t cols, uint32_t spans, uint8_t* memory, uint32_t half,
                            uint32_t halves) {
  const uint32_t lane = threadIdx.x % 16;
  auto* to = reinterpret_cast<QuantSpan*>(memory + spans * 64);
#pragma unroll 6
  for (uint32_t first = 0; first < spans; first += halves) {  // whole warps, as quantising wants them
    const uint32_t s = first + half, col = s * 64 + lane * 4;
    const float4 v = col < cols ? __ldcg(reinterpret_cast<const float4*>(x + col)) : make_float4(0, 0, 0, 0);
    QuantSpan span;
    const int codes = quantise_span(v, span);
    if (s >= spans) continue;
    reinterpret_cast<int*>(memory)[s * 16 + lane] = codes;
    if (lane == 0) to[s] = span;
  }
}

// -- one part of a record for each pick; vector = pick / share

struct PartJob {
  PartTiles part;
  Picks picks;
  Quantised x;  // q null: f is quantised on the way
  const float* f;
  size_t f_stride;
  uint32_t share;
  float* out;
  size_t out_stride;
  bool add;
};

__device__ void write(const PartJob& job, const uint8_t* record, uint32_t pick, size_t row, float y) {
  if (row >= job.part.m.rows) return;
  y = add_bias(job.part, record, row, y);
  float* out = job.out + pick * job.out_stride + row;
  *out = job.add ? __fadd_rn(*out, y) : y;
}

template <class C>
__global__ void __launch_bounds__(256) part_kernel(const __grid_constant__ PartJob job) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ float sums[8][16];
  const uint32_t chain = threadIdx.x / 32, part = threadIdx.x / 16 % 2, row = threadIdx.x % 16,
                 pick = blockIdx.x;
  wait_for_previous();
  let_next_begin();
  const uint8_t* record = record_of(job.picks, pick);
  if (!record) return;
  const uint32_t spans = static_cast<uint32_t>((job.part.m.cols + 63) / 64);
  const Quantised x[] = {staged(memory, spans)};
  const auto ready = [&] {
    const size_t vector = pick / job.share;
    if (job.x.q)
      stage(job.x, vector, spans, memory);
    else
      quantise_to(job.f + vector * job.f_stride, static_cast<uint32_t>(job.part.m.cols), spans, memory,
                  threadIdx.x / 16, 16);
    __syncthreads();
  };
  const BlockSpans blocks[] = {BlockSpans(tiles_in(job.part, record), blockIdx.y)};
  float c[1][1];
  chain_sums<C, 2, 4>(job.part.m, blocks, row, part, chain, x, ready, c);
  if (part == 0) sums[chain][row] = c[0][0];
  __syncthreads();
  if (threadIdx.x < 16) write(job, record, pick, blockIdx.y * 16 + row, chain_tree(sums, row));
}

template <MatrixType kType>
__global__ void __launch_bounds__(256) exact_part_kernel(const __grid_constant__ PartJob job) {
  constexpr int kEach = kWide<kType>;
  __shared__ float sums[16][17];
  const uint32_t phase = threadIdx.x / 16, row = threadIdx.x % 16, pick = blockIdx.x;
  const uint8_t* record = record_of(job.picks, pick);
  if (!record) return;
  const float* const x[] = {job.f + pick / job.share * job.f_stride};
  float c[1][kEach];
  exact_sums<kType>(tiles_in(job.part, record), blockIdx.y, row, phase, x, c);
#pragma unroll
  for (int b = 0; b < kEach; ++b) sums[kEach * phase + b][row] = c[0][b];
  __syncthreads();
  if (phase == 0) write(job, record, pick, blockIdx.y * 16 + row, exact_tree(sums, row));
}

void launch_part(const PartJob& job, const MatrixFormat& format, bool exact, size_t n_picks,
                 cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(n_picks), static_cast<unsigned>((job.part.m.rows + 15) / 16));
  if (!exact && has_integer_codes(format))
    with_codes(format, [&](auto codes) {
      launch_overlapped("part of an expert", part_kernel<decltype(codes)>, grid, 256,
                        staged_bytes(span_count(job.part.m.cols)), stream, job);
    });
  else
    with_type(format.type,
              [&](auto type) { exact_part_kernel<type()><<<grid, 256 / kWide<type()>, 0, stream>>>(job); });
  check_launch("part of an expert");
}

// hidden = act(gate, up), per pick: floats in place of gate, and the int8 form where there is room for it.
__global__ void activate_kernel(Picks picks, Vectors hidden, const float* up, float clamp) {
  const size_t spans = span_count(hidden.cols), half_warps = blockDim.x / 16;
  const size_t item = blockIdx.x * half_warps + threadIdx.x / 16, pick = item / spans, s = item % spans;
  const bool mine = pick < hidden.n && record_of(picks, static_cast<uint32_t>(pick));
  const size_t col = s * 64 + threadIdx.x % 16 * 4;
  float v[4] = {};
  for (size_t i = 0; mine && i < 4; ++i)
    if (col + i < hidden.cols) {
      float& gate = hidden.f[pick * hidden.stride + col + i];
      gate = v[i] = gated_value(gate, up[pick * hidden.stride + col + i], clamp);
    }
  QuantSpan span;
  const int codes = quantise_span(make_float4(v[0], v[1], v[2], v[3]), span);
  if (!mine || !hidden.q) return;
  reinterpret_cast<int*>(hidden.q)[item * 16 + threadIdx.x % 16] = codes;
  if (threadIdx.x % 16 == 0) hidden.span[item] = span;
}

// -- a few tokens: gate, up and activation in one launch, down and the weighted sum in another

struct GateUpJob {
  PartTiles gate, up;
  Picks picks;
  Quantised x;
  uint32_t top_k, each;  // picks of a token, without and with what is joined
  Joined joined;
  float clamp;
  float* hidden;           // [picks, width]
  uint32_t records_bytes;  // of their table, to be asked for
  ptrdiff_t down;          // where the down matrix begins, and how much of it each block of threads asks for
  uint32_t down_bytes, ahead_bytes;
};

// 16 hidden values of a pick: rows of gate and of up at once. The rows of down that follow are asked for
// meanwhile.
template <class C>
__global__ void __launch_bounds__(256, C::words == 8 ? 3 : 2)
    gate_up_kernel(const __grid_constant__ GateUpJob job) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ float sums[2][8][16];
  const uint32_t chain = threadIdx.x / 32, part = threadIdx.x / 16 % 2, row = threadIdx.x % 16,
                 token = blockIdx.y / job.each;
  if (job.records_bytes && blockIdx.x == 0 && threadIdx.x == 0)
    fetch_ahead(job.picks.records, job.records_bytes);
  const uint32_t spans = static_cast<uint32_t>((job.gate.m.cols + 63) / 64);
  wait_for_previous();
  let_next_begin();  // not before: the kernel that follows reads at once what this one has waited for
  // The vector is on its way before the weights are, behind which it would have to queue.
  const FirstStaged first(job.x, token, spans);
  const Pick pick = pick_at(job.picks, job.joined, job.top_k, token, blockIdx.y % job.each);
  const uint8_t* record = pick.record;
  if (!record) return;
  const PartTiles gate_part = part_of(job.gate, pick, job.joined.gate, job.joined.gate_bias),
                  up_part = part_of(job.up, pick, job.joined.up, job.joined.up_bias);
  const Quantised x[] = {staged(memory, spans)};
  const auto ready = [&] {
    first.finish(job.x, token, spans, memory);
    if (threadIdx.x == 0 && blockIdx.x * job.ahead_bytes < job.down_bytes)
      fetch_ahead(record + (pick.joined ? job.joined.down : job.down) + blockIdx.x * job.ahead_bytes,
                  min(job.ahead_bytes, job.down_bytes - blockIdx.x * job.ahead_bytes));
    __syncthreads();
  };
  const BlockSpans blocks[] = {BlockSpans(tiles_in(gate_part, record), blockIdx.x),
                               BlockSpans(tiles_in(up_part, record), blockIdx.x)};
  float c[2][1];
  chain_sums<C, 2, 4>(job.gate.m, blocks, row, part, chain, x, ready, c);
  sums[part][chain][row] = part ? c[1][0] : c[0][0];
  __syncthreads();
  const uint32_t unit = blockIdx.x * 16 + row;
  if (threadIdx.x < 16 && unit < job.gate.m.rows) {
    const float gate = add_bias(gate_part, record, unit, chain_tree(sums[0], row));
    const float up = add_bias(up_part, record, unit, chain_tree(sums[1], row));
    job.hidden[size_t{blockIdx.y} * job.gate.m.rows + unit] = gated_value(gate, up, job.clamp);
  }
}

struct DownJob {
  PartTiles down;
  Picks picks;
  const float* hidden;  // [picks, width]
  const float* weights;
  uint32_t top_k, each;
  Joined joined;
  ExpertSum sum;
};

constexpr uint32_t kDownWarps = 9;  // at most: a usual choice of eight, and one that is joined to it

// A row of a block times a vector, by a warp: half of it takes every other span, kAhead of them at a time (a
// multiple of four, or all). ready() as in chain_sums.
template <class C, int kAhead, class Ready>
__device__ float warp_row(const Tiles& m, size_t block, const Quantised& x, Ready ready) {
  const uint32_t half = threadIdx.x / 16 % 2, row = threadIdx.x % 16;
  const uint32_t spans = static_cast<uint32_t>((m.cols + 63) / 64);
  const BlockSpans at(m, block);
  float c[4] = {};
  for (uint32_t begin = half; begin == half || begin < spans; begin += 2 * kAhead) {
    uint32_t w[kAhead][C::words];
    typename C::Requested scales[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (const uint32_t s = begin + 2 * i; s < spans) {
        load_words(at.codes(s) + row * 4, w[i]);
        scales[i] = C::request(m, at.scales(s) + row * C::scale_bytes(m));
      }
    if (begin == half) ready();
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (const uint32_t s = begin + 2 * i; s < spans) {
        int codes[16], dots[2];
        C::template load_codes<1>(x.q + s * 64, 0, codes);
        C::template dot<1>(w[i], codes, 0, dots);
        c[i % 4] = C::add(C::scales(m, scales[i]), dots, x.span[s], c[i % 4]);
      }
  }
  const float sum = __fadd_rn(__fadd_rn(c[0], c[2]), __fadd_rn(c[1], c[3]));
  return __fadd_rn(sum, __shfl_xor_sync(0xffffffff, sum, 16));
}

// 16 results of a token: a warp per pick, then the sum in routing order, a joined expert last. What the sum
// needs is requested before the products are computed.
template <class C, int kAhead>
__global__ void __launch_bounds__(32 * kDownWarps) down_kernel(const __grid_constant__ DownJob job) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ float each[kDownWarps][16], weights[kDownWarps];
  const uint32_t token = blockIdx.y, warp = threadIdx.x / 32, row = threadIdx.x % 16,
                 at = blockIdx.x * 16 + row;
  const size_t d = job.down.m.rows;
  const uint32_t spans = static_cast<uint32_t>((job.down.m.cols + 63) / 64);
  const ExpertSum& sum = job.sum;
  const bool mine = threadIdx.x < 16 && at < d;
  float* x = sum.x + token * sum.x_stride + at;
  float before = 0, shared = 0, gate = 0, total = 0;
  let_next_begin();
  for (uint32_t begin = 0; begin < job.each; begin += kDownWarps) {
    const uint32_t n = min(kDownWarps, job.each - begin);
    if (warp < n) {
      const Pick pick = pick_at(job.picks, job.joined, job.top_k, token, begin + warp);
      const uint8_t* record = pick.record;
      const PartTiles down = part_of(job.down, pick, job.joined.down, job.joined.down_bias);
      uint8_t* vector = memory + warp * staged_bytes(spans);
      const auto ready = [&] {
        wait_for_previous();
        quantise_to(job.hidden + size_t{token * job.each + pick.place} * job.down.m.cols,
                    static_cast<uint32_t>(job.down.m.cols), spans, vector, threadIdx.x / 16 % 2, 2);
        if (threadIdx.x % 32 == 0)
          weights[warp] = !pick.joined      ? job.weights[token * job.top_k + pick.place]
                          : sum.shared_gate ? sigmoid_value(sum.shared_gate[token])
                                            : 1.0f;
        if (mine && begin == 0) {
          before = *x;
          if (sum.shared) shared = sum.shared[token * d + at];
          if (sum.shared && sum.shared_gate) gate = sum.shared_gate[token];
        }
        __syncwarp();
      };
      const float y = warp_row<C, kAhead>(tiles_in(down, record), blockIdx.x, staged(vector, spans), ready);
      if (threadIdx.x % 32 < 16 && at < d) each[warp][row] = add_bias(down, record, at, y);
    }
    __syncthreads();
    if (mine)
      for (uint32_t j = 0; j < n; ++j) total = __fmaf_rn(weights[j], each[j][row], total);
    __syncthreads();
  }
  if (!mine) return;
  if (sum.shared) total = __fmaf_rn(sum.shared_gate ? sigmoid_value(gate) : 1.0f, shared, total);
  *x = __fadd_rn(before, total);
}

template <class C>
void launch_down(const DownJob& job, size_t n, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((job.down.m.rows + 15) / 16), static_cast<unsigned>(n));
  const uint32_t warps = std::min(job.each, kDownWarps);
  const auto run = [&](auto kernel) {
    launch_overlapped("down of experts", kernel, grid, 32 * warps,
                      warps * staged_bytes(span_count(job.down.m.cols)), stream, job);
  };
  const size_t each = (span_count(job.down.m.cols) + 1) / 2;  // spans of half a warp
  if (C::words == 16 || each <= 4)
    run(down_kernel<C, 4>);
  else if (each <= 6)
    run(down_kernel<C, 6>);
  else
    run(down_kernel<C, 8>);
}

// -- many tokens: picks sorted by expert, and the tiles of each expert's picks

struct Groups {
  uint32_t* next;     // [n_experts]: where the next pick of an expert goes
  uint32_t* order;    // [picks]: picks, sorted by expert
  GemmTile* tiles;    // [most_tiles]
  uint32_t* n_tiles;  // [1]
};

constexpr unsigned kGroupThreads = 1024;

size_t most_tiles(size_t picks, size_t n_experts) {
  return picks / kGemmVectors + std::min(picks, n_experts);
}

// Counts, first places and tiles, by one block of threads; dynamic shared memory: a count per expert.
__global__ void __launch_bounds__(kGroupThreads)
    count_kernel(const uint32_t* ids, uint32_t picks, uint32_t n_experts, Groups g) {
  extern __shared__ uint32_t counts[];
  __shared__ uint32_t rows_of[kGroupThreads], tiles_of_thread[kGroupThreads];
  const uint32_t t = threadIdx.x, each = (n_experts + kGroupThreads - 1) / kGroupThreads;
  for (uint32_t e = t; e < n_experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  for (uint32_t i = t; i < picks; i += kGroupThreads) atomicAdd(&counts[ids[i]], 1);
  __syncthreads();
  const uint32_t begin = min(t * each, n_experts), end = min(begin + each, n_experts);
  uint32_t rows = 0, tiles = 0;
  for (uint32_t e = begin; e < end; ++e)
    rows += counts[e], tiles += (counts[e] + kGemmVectors - 1) / kGemmVectors;
  rows_of[t] = rows, tiles_of_thread[t] = tiles;
  for (uint32_t step = 1; step < kGroupThreads; step *= 2) {  // sums up to and including each thread's
    __syncthreads();
    const uint32_t more_rows = t >= step ? rows_of[t - step] : 0,
                   more_tiles = t >= step ? tiles_of_thread[t - step] : 0;
    __syncthreads();
    rows_of[t] += more_rows, tiles_of_thread[t] += more_tiles;
  }
  __syncthreads();
  uint32_t row = rows_of[t] - rows, tile = tiles_of_thread[t] - tiles;
  for (uint32_t e = begin; e < end; ++e) {
    g.next[e] = row;
    for (uint32_t at = 0; at < counts[e]; at += kGemmVectors)
      g.tiles[tile++] = {e, row + at, min(kGemmVectors, counts[e] - at)};
    row += counts[e];
  }
  if (t == kGroupThreads - 1) *g.n_tiles = tiles_of_thread[t];
}

__global__ void scatter_kernel(const uint32_t* ids, uint32_t picks, Groups g) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < picks) g.order[atomicAdd(&g.next[ids[i]], 1)] = i;
}

// x[t] += sum over its picks in order, then the shared expert.
__global__ void combine_kernel(const float* each, const float* weights, uint32_t top_k, size_t d,
                               ExpertSum sum, const __grid_constant__ Elsewhere elsewhere) {
  constexpr uint32_t kAhead = 8;  // results that are requested together: those elsewhere are far
  const size_t t = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= d) return;
  float total = 0;
  for (uint32_t begin = 0; begin < top_k; begin += kAhead) {
    float y[kAhead];
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) {
      if (begin + j >= top_k) continue;
      const size_t pick = t * top_k + begin + j;
      const bool here = !elsewhere.results || elsewhere.row[pick] == Elsewhere::kNot;
      y[j] = (here ? each + pick * d : elsewhere.results + elsewhere.row[pick] * d)[i];
    }
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j)
      if (begin + j < top_k) total = __fmaf_rn(weights[t * top_k + begin + j], y[j], total);
  }
  if (sum.shared)
    total =
        __fmaf_rn(sum.shared_gate ? sigmoid_value(sum.shared_gate[t]) : 1.0f, sum.shared[t * d + i], total);
  float* x = sum.x + t * sum.x_stride + i;
  *x = __fadd_rn(*x, total);
}

// -- what runs when, and the memory between the launches

constexpr size_t kFewTokens = 8;
constexpr size_t kPlainShared = 44 << 10;  // bytes of shared memory that need no leave
constexpr size_t kMostAhead = 16 << 20;  // bytes that a launch may have brought to the L2 cache for the next

bool is_fast(const ExpertLayout::Part& p, bool exact) { return !exact && has_integer_codes(p.format); }
// Gate and up in one kernel.
bool fused(const ExpertLayout& l, bool exact) {
  return is_fast(l.gate, exact) && l.gate.format == l.up.format;
}

struct Scratch {
  float *gate, *up;  // [picks, width]; gate becomes the hidden vectors
  int8_t* q;         // of the hidden vectors
  QuantSpan* span;
  float* each;  // [picks, d_model]: results
  Groups groups;
};

// Lays the arrays out from `base` on; returns the bytes. n_experts 0: one part for all.
size_t lay_out(const ExpertLayout& l, bool exact, size_t picks, size_t few_picks, size_t n_experts,
               std::byte* base, Scratch* out) {
  size_t at = 0;
  const auto take = [&]<class T>(T*& p, size_t n) {
    p = reinterpret_cast<T*>(base + at);
    at += (n * sizeof(T) + 255) / 256 * 256;
  };
  const size_t width = l.gate.rows, spans = span_count(width);
  // Many vectors of fused parts need their int8 form only.
  const bool all = !fused(l, exact) || !is_fast(l.down, exact);
  Scratch s;
  take(s.gate, (all ? picks : few_picks) * width);
  take(s.up, fused(l, exact) ? 0 : picks * width);
  take(s.q, is_fast(l.down, exact) ? picks * spans * 64 : 0);
  take(s.span, is_fast(l.down, exact) ? picks * spans : 0);
  take(s.each, n_experts ? picks * l.down.rows : 0);
  take(s.groups.next, n_experts);
  take(s.groups.order, n_experts ? picks : 0);
  take(s.groups.tiles, n_experts ? most_tiles(picks, n_experts) : 0);
  take(s.groups.n_tiles, n_experts ? 1 : 0);
  if (out) *out = s;
  return at;
}

// Gate, up, activation and down for all picks, pick p of vector p / share.
struct FeedForward {
  const ExpertLayout& layout;
  bool exact;
  const Vectors& x;
  Picks picks;
  size_t n_picks, n_experts;  // 0 experts: one part for all
  uint32_t share;
  Scratch scratch;
  float* out;
  size_t out_stride;
  bool add;

  bool many() const { return x.n > kFewTokens; }
  // Down makes the int8 form of its input itself.
  bool quantises_late() const {
    return !many() && fused(layout, exact) && is_fast(layout.down, exact) && layout.down.cols % 4 == 0;
  }
  Vectors hidden() const {
    const bool fast = is_fast(layout.down, exact);
    return {n_picks,          layout.gate.rows,           scratch.gate,
            layout.gate.rows, fast ? scratch.q : nullptr, fast ? scratch.span : nullptr};
  }
  GemmJob gemm_job(const ExpertLayout::Part& p, uint32_t rows_share) const {
    GemmJob g{};
    g.m = tiles_at(p);
    g.bias = bias_at(p);
    g.records = picks.records;
    g.rows = {.n = static_cast<uint32_t>(n_picks), .share = rows_share};
    if (n_experts) {
      g.rows.tiles = scratch.groups.tiles;
      g.rows.n_tiles = scratch.groups.n_tiles;
      g.rows.order = scratch.groups.order;
    }
    g.n_rows = static_cast<uint32_t>(p.rows);
    return g;
  }
  size_t n_tiles() const {
    return n_experts ? most_tiles(n_picks, n_experts) : (n_picks + kGemmVectors - 1) / kGemmVectors;
  }
  // Addresses: absolute, or from the start of a record on.
  Tiles tiles_at(const ExpertLayout::Part& p) const {
    return tiles_of({picks.record + p.offset, p.format, p.rows, p.cols});
  }
  const float* bias_at(const ExpertLayout::Part& p) const {
    return p.bias == ExpertLayout::kNone ? nullptr : reinterpret_cast<const float*>(picks.record + p.bias);
  }

  // ask_for_table: it is in device memory.
  void gate_up_few(const Joined& joined, bool ask_for_table, cudaStream_t stream) const {
    const uint32_t each = share + (joined.record ? 1 : 0);
    const dim3 grid(static_cast<unsigned>((layout.gate.rows + 15) / 16), static_cast<unsigned>(x.n * each));
    const size_t down = matrix_bytes(layout.down.format, layout.down.rows, layout.down.cols) / 16 * 16;
    const bool ahead = down * n_picks <= kMostAhead;
    ask_for_table &= reinterpret_cast<uintptr_t>(picks.records) % 16 == 0;  // else not worth the trouble
    const auto table_bytes = static_cast<uint32_t>(ask_for_table ? n_experts * sizeof(void*) / 16 * 16 : 0);
    const GateUpJob job{part_tiles(layout.gate),
                        part_tiles(layout.up),
                        picks,
                        {x.q, x.span},
                        share,
                        each,
                        joined,
                        layout.clamp,
                        scratch.gate,
                        table_bytes,
                        layout.down.offset,
                        ahead ? static_cast<uint32_t>(down) : 0,
                        static_cast<uint32_t>((down / grid.x / 16 + 1) * 16)};
    with_codes(layout.gate.format, [&](auto codes) {
      launch_overlapped("gate and up of experts", gate_up_kernel<decltype(codes)>, grid, 256,
                        staged_bytes(span_count(layout.gate.cols)), stream, job);
    });
  }

  void gate_up(cudaStream_t stream) const {
    if (fused(layout, exact) && many()) {
      GemmJob g = gemm_job(layout.gate, share);
      g.up = tiles_at(layout.up);
      g.up_bias = bias_at(layout.up);
      g.x = {x.q, x.span};
      g.clamp = layout.clamp;
      g.hidden = hidden();
      if (is_fast(layout.down, exact)) g.hidden.f = nullptr;
      with_codes(layout.gate.format,
                 [&](auto codes) { launch_gemm<decltype(codes), true>(g, n_tiles(), stream); });
    } else if (fused(layout, exact)) {
      gate_up_few({}, false, stream);
      if (is_fast(layout.down, exact) && !quantises_late()) quantise(hidden(), stream);
    } else {
      const size_t width = layout.gate.rows;
      const Quantised q{x.q, x.span};
      launch_part({part_tiles(layout.gate), picks, q, x.f, x.stride, share, scratch.gate, width, false},
                  layout.gate.format, exact, n_picks, stream);
      launch_part({part_tiles(layout.up), picks, q, x.f, x.stride, share, scratch.up, width, false},
                  layout.up.format, exact, n_picks, stream);
      const size_t items = n_picks * span_count(width);
      activate_kernel<<<static_cast<unsigned>((items + 7) / 8), 128, 0, stream>>>(picks, hidden(), scratch.up,
                                                                                  layout.clamp);
      check_launch("activation of experts");
    }
  }

  void down(cudaStream_t stream) const {
    if (is_fast(layout.down, exact) && many()) {
      GemmJob g = gemm_job(layout.down, 1);
      g.x = {scratch.q, scratch.span};
      g.out = out;
      g.out_stride = out_stride;
      g.add = add;
      with_codes(layout.down.format,
                 [&](auto codes) { launch_gemm<decltype(codes), false>(g, n_tiles(), stream); });
    } else {
      launch_part({part_tiles(layout.down),
                   picks,
                   {quantises_late() ? nullptr : scratch.q, scratch.span},
                   scratch.gate,
                   layout.gate.rows,
                   1,
                   out,
                   out_stride,
                   add},
                  layout.down.format, exact, n_picks, stream);
    }
  }

  void run(cudaStream_t stream) const {
    if (n_picks == 0) return;
    gate_up(stream);
    down(stream);
  }
};

// Of the few tokens that two launches serve, with room for an expert that is joined to them.
size_t few_picks(size_t n, size_t top_k) { return std::min(n, kFewTokens) * (top_k + 1); }

FeedForward feed_forward(const ExpertWork& w, const std::byte* const* records) {
  Scratch s;
  lay_out(w.layout, w.exact, w.x.n * w.top_k, few_picks(w.x.n, w.top_k), w.n_experts, w.scratch, &s);
  return {w.layout,
          w.exact,
          w.x,
          {w.ids, records, nullptr},
          w.x.n * w.top_k,
          w.n_experts,
          static_cast<uint32_t>(w.top_k),
          s,
          s.each,
          w.layout.down.rows,
          false};
}

// Two launches do it all.
bool few_launches(const ExpertWork& w) {
  return w.x.n <= kFewTokens && fused(w.layout, w.exact) && is_fast(w.layout.down, w.exact) &&
         w.layout.down.cols % 4 == 0 &&
         kDownWarps * staged_bytes(span_count(w.layout.down.cols)) <= kPlainShared;
}

bool same_shape(const ExpertLayout::Part& a, const ExpertLayout::Part& b) {
  return a.format == b.format && a.rows == b.rows && a.cols == b.cols;
}

}  // namespace

size_t experts_scratch(const ExpertLayout& layout, size_t n, size_t top_k, size_t n_experts, bool exact) {
  return lay_out(layout, exact, n * top_k, few_picks(n, top_k), n_experts, nullptr, nullptr);
}

bool can_join(const ExpertWork& w, const ExpertLayout& shared) {
  return few_launches(w) && same_shape(w.layout.gate, shared.gate) && same_shape(w.layout.up, shared.up) &&
         same_shape(w.layout.down, shared.down) && w.layout.clamp == shared.clamp;
}

bool hears_choice(const ExpertWork& w) { return few_launches(w) && token_experts_can(w); }

void group_experts(const ExpertWork& w, cudaStream_t stream) {
  const FeedForward f = feed_forward(w, nullptr);
  if (!f.many()) return;
  const auto picks = static_cast<uint32_t>(f.n_picks);
  count_kernel<<<1, kGroupThreads, w.n_experts * sizeof(uint32_t), stream>>>(
      w.ids, picks, static_cast<uint32_t>(w.n_experts), f.scratch.groups);
  scatter_kernel<<<(picks + 255) / 256, 256, 0, stream>>>(w.ids, picks, f.scratch.groups);
  check_launch("grouping of picks");
}

void compute_experts(const ExpertWork& w, const std::byte* const* records, cudaStream_t stream) {
  feed_forward(w, records).run(stream);
}

void combine_experts(const ExpertWork& w, const ExpertSum& sum, const Elsewhere& elsewhere,
                     cudaStream_t stream) {
  if (w.x.n == 0) return;
  const size_t d = w.layout.down.rows;
  const dim3 grid(static_cast<unsigned>((d + 255) / 256), static_cast<unsigned>(w.x.n));
  combine_kernel<<<grid, 256, 0, stream>>>(feed_forward(w, nullptr).scratch.each, w.weights,
                                           static_cast<uint32_t>(w.top_k), d, sum, elsewhere);
  check_launch("sum of experts");
}

void experts(const ExpertWork& w, const std::byte* const* records, const ExpertSum& sum,
             cudaStream_t stream) {
  const FeedForward f = feed_forward(w, records);
  if (f.n_picks == 0) return;
  if (few_launches(w)) {
    Joined joined{};
    if (w.shared) {
      const ExpertLayout& l = w.shared_layout;
      joined = {w.shared, l.gate.offset, l.up.offset, l.down.offset, l.gate.bias, l.up.bias, l.down.bias};
    }
    if (token_experts_can(w)) return token_experts(w, records, joined, sum, stream);
    f.gate_up_few(joined, true, stream);
    const DownJob job{part_tiles(w.layout.down),
                      f.picks,
                      f.scratch.gate,
                      w.weights,
                      f.share,
                      f.share + (w.shared ? 1 : 0),
                      joined,
                      sum};
    with_codes(w.layout.down.format, [&](auto codes) { launch_down<decltype(codes)>(job, w.x.n, stream); });
    return;
  }
  group_experts(w, stream);
  compute_experts(w, records, stream);
  combine_experts(w, sum, {}, stream);
}

size_t mlp_scratch(const ExpertLayout& layout, size_t n, bool exact) {
  return lay_out(layout, exact, n, std::min(n, kFewTokens), 0, nullptr, nullptr);
}

void mlp(const Mlp& p, cudaStream_t stream) {
  Scratch s;
  lay_out(p.layout, p.exact, p.x.n, std::min(p.x.n, kFewTokens), 0, p.scratch, &s);
  FeedForward{p.layout, p.exact,      p.x,  {nullptr, nullptr, p.record}, p.x.n, 0, 1, s,
              p.out,    p.out_stride, p.add}
      .run(stream);
}

}  // namespace moeflux::cuda
