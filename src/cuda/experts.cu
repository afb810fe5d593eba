#include "cuda/experts.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/matvec.cuh"

namespace moeflux::cuda {
namespace {

// A part of a record as kernels see it: its matrix, with the record's address still to be added.
struct PartTiles {
  Tiles m;
  ptrdiff_t offset, bias;
};

PartTiles part_tiles(const ExpertLayout::Part& p) {
  return {tiles_of({nullptr, p.format, p.rows, p.cols}), p.offset, p.bias};
}

// Which record each pick meets: that of its expert, or always the same one.
struct Picks {
  const uint32_t* ids;
  const std::byte* const* records;
  const std::byte* record;
};

__device__ const uint8_t* record_of(const Picks& picks, uint32_t pick) {
  return reinterpret_cast<const uint8_t*>(picks.ids ? picks.records[picks.ids[pick]] : picks.record);
}

__device__ Tiles tiles_in(const PartTiles& p, const uint8_t* record) {
  Tiles m = p.m;
  m.data = record + p.offset;
  return m;
}

__device__ float add_bias(const PartTiles& p, const uint8_t* record, size_t row, float y) {
  if (p.bias == ExpertLayout::kNone) return y;
  return __fadd_rn(y, reinterpret_cast<const float*>(record + p.bias)[row]);
}

// -- one part of a record for each pick; vector = pick / share

struct PartJob {
  PartTiles part;
  Picks picks;
  Quantised x;
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
__global__ void __launch_bounds__(128) part_kernel(const __grid_constant__ PartJob job) {
  __shared__ float sums[8][16];
  const uint32_t chain = threadIdx.x / 16, row = threadIdx.x % 16, pick = blockIdx.x;
  const uint8_t* record = record_of(job.picks, pick);
  if (!record) return;
  const size_t vector[] = {pick / job.share};
  float c[1];
  chain_sums<C>(tiles_in(job.part, record), blockIdx.y, row, chain, job.x, vector, c);
  sums[chain][row] = c[0];
  __syncthreads();
  if (chain == 0) write(job, record, pick, blockIdx.y * 16 + row, chain_tree(sums, row));
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
    with_codes(format, [&](auto codes) { part_kernel<decltype(codes)><<<grid, 128, 0, stream>>>(job); });
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

// x[t] += sum over its picks in order, then the shared expert.
__global__ void combine_kernel(const float* each, const float* weights, uint32_t top_k, size_t d,
                               ExpertSum sum) {
  const size_t t = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= d) return;
  float total = 0;
  for (uint32_t j = 0; j < top_k; ++j)
    total = __fmaf_rn(weights[t * top_k + j], each[(t * top_k + j) * d + i], total);
  if (sum.shared)
    total =
        __fmaf_rn(sum.shared_gate ? sigmoid_value(sum.shared_gate[t]) : 1.0f, sum.shared[t * d + i], total);
  float* x = sum.x + t * sum.x_stride + i;
  *x = __fadd_rn(*x, total);
}

// -- scratch

struct Scratch {
  float *gate, *up;  // [picks, width]
  int8_t* q;         // of the hidden vectors
  QuantSpan* span;
  float* each;  // [picks, d_model]: results
};

// Lays the arrays out from `base` on; returns the bytes.
size_t lay_out(const ExpertLayout& l, size_t picks, std::byte* base, Scratch* out) {
  size_t at = 0;
  const auto take = [&](size_t bytes) {
    std::byte* p = base + at;
    at += (bytes + 255) / 256 * 256;
    return p;
  };
  const size_t width = l.gate.rows, spans = span_count(width);
  Scratch s;
  s.gate = reinterpret_cast<float*>(take(picks * width * sizeof(float)));
  s.up = reinterpret_cast<float*>(take(picks * width * sizeof(float)));
  s.q = reinterpret_cast<int8_t*>(take(picks * spans * 64));
  s.span = reinterpret_cast<QuantSpan*>(take(picks * spans * sizeof(QuantSpan)));
  s.each = reinterpret_cast<float*>(take(picks * l.down.rows * sizeof(float)));
  if (out) *out = s;
  return at;
}

// Gate, up, activation and down for n picks, pick p of vector p / share.
struct FeedForward {
  const ExpertLayout& layout;
  bool exact;
  const Vectors& x;
  Picks picks;
  size_t n_picks;
  uint32_t share;
  Scratch scratch;
  float* out;
  size_t out_stride;
  bool add;

  void run(cudaStream_t stream) const {
    if (n_picks == 0) return;
    const size_t width = layout.gate.rows;
    const Quantised q{x.q, x.span};
    launch_part({part_tiles(layout.gate), picks, q, x.f, x.stride, share, scratch.gate, width, false},
                layout.gate.format, exact, n_picks, stream);
    launch_part({part_tiles(layout.up), picks, q, x.f, x.stride, share, scratch.up, width, false},
                layout.up.format, exact, n_picks, stream);
    const Vectors hidden{n_picks, width, scratch.gate, width, exact ? nullptr : scratch.q, scratch.span};
    const size_t items = n_picks * span_count(width);
    activate_kernel<<<static_cast<unsigned>((items + 7) / 8), 128, 0, stream>>>(picks, hidden, scratch.up,
                                                                                layout.clamp);
    check_launch("activation of experts");
    launch_part({part_tiles(layout.down),
                 picks,
                 {scratch.q, scratch.span},
                 scratch.gate,
                 width,
                 1,
                 out,
                 out_stride,
                 add},
                layout.down.format, exact, n_picks, stream);
  }
};

Scratch scratch_of(const ExpertWork& w) {
  Scratch s;
  lay_out(w.layout, w.x.n * w.top_k, w.scratch, &s);
  return s;
}

}  // namespace

size_t experts_scratch(const ExpertLayout& layout, size_t n, size_t top_k, size_t, bool) {
  return lay_out(layout, n * top_k, nullptr, nullptr);
}

void group_experts(const ExpertWork&, cudaStream_t) {}

void compute_experts(const ExpertWork& w, const std::byte* const* records, cudaStream_t stream) {
  const Scratch s = scratch_of(w);
  FeedForward{w.layout,
              w.exact,
              w.x,
              {w.ids, records, nullptr},
              w.x.n * w.top_k,
              static_cast<uint32_t>(w.top_k),
              s,
              s.each,
              w.layout.down.rows,
              false}
      .run(stream);
}

void combine_experts(const ExpertWork& w, const ExpertSum& sum, cudaStream_t stream) {
  if (w.x.n == 0) return;
  const size_t d = w.layout.down.rows;
  const dim3 grid(static_cast<unsigned>((d + 255) / 256), static_cast<unsigned>(w.x.n));
  combine_kernel<<<grid, 256, 0, stream>>>(scratch_of(w).each, w.weights, static_cast<uint32_t>(w.top_k), d,
                                           sum);
  check_launch("sum of experts");
}

void experts(const ExpertWork& w, const std::byte* const* records, const ExpertSum& sum,
             cudaStream_t stream) {
  group_experts(w, stream);
  compute_experts(w, records, stream);
  combine_experts(w, sum, stream);
}

size_t mlp_scratch(const ExpertLayout& layout, size_t n, bool) {
  return lay_out(layout, n, nullptr, nullptr);
}

void mlp(const Mlp& p, cudaStream_t stream) {
  Scratch s;
  lay_out(p.layout, p.x.n, p.scratch, &s);
  FeedForward{p.layout, p.exact, p.x, {nullptr, nullptr, p.record}, p.x.n, 1, s, p.out, p.out_stride, p.add}
      .run(stream);
}

}  // namespace moeflux::cuda
