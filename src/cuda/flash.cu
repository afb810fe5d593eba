// How fragments meet memory: the order of summation over components, and which column is which, are free as
// long as both sides agree. So a lane takes 16 neighbouring bytes of a key as its share of two products, and
// 16 neighbouring bytes of each of four values as its columns of eight.
#include "cuda/flash.h"
#include "cuda/kv_value.cuh"
#include "cuda/mma.cuh"
#include "cuda/overlap.cuh"
#include "cuda/reduce.cuh"
#include "cuda/span.cuh"

namespace moeflux::cuda {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

// In bytes from a page's start: one key/value head's keys or values.
template <unsigned kDim>
__device__ size_t head_at(uint64_t part, unsigned kv_head) {
  return part + size_t{kv_head} * (kKvPage * kDim * sizeof(__nv_bfloat16));
}
template <unsigned kDim>
__device__ size_t row_at(unsigned position) {  // and from there on, the row of a position
  return position % kKvPage * (kDim * sizeof(__nv_bfloat16));
}

__device__ size_t first_seen(size_t window, size_t last) {
  return window && last + 1 > window ? last + 1 - window : 0;
}

// A fragments of 16 queries [kDim], rows given by a function that returns null beyond the last.
template <unsigned kDim, class Row>
__device__ void load_queries(uint32_t (&q)[kDim / 16][4], Row row) {
  const unsigned lane = threadIdx.x % 32, at = lane % 4 * 8;
  const float *low = row(lane / 4), *high = row(lane / 4 + 8);
#pragma unroll
  for (unsigned chunk = 0; chunk < kDim / 32; ++chunk)
#pragma unroll
    for (unsigned step = 0; step < 2; ++step)
#pragma unroll
      for (unsigned pair = 0; pair < 2; ++pair) {
        const unsigned c = chunk * 32 + at + step * 4 + pair * 2;
        const float2 zero = make_float2(0, 0);
        const float2 x = low ? *reinterpret_cast<const float2*>(low + c) : zero,
                     y = high ? *reinterpret_cast<const float2*>(high + c) : zero;
        q[chunk * 2 + step][pair * 2] = pack_bf16(x.x, x.y);
        q[chunk * 2 + step][pair * 2 + 1] = pack_bf16(y.x, y.y);
      }
}

// c += q k^T for 8 positions; key(chunk) gives this lane's 16 bytes of its position.
template <unsigned kDim, class Key>
__device__ void score(float (&c)[4], const uint32_t (&q)[kDim / 16][4], Key key) {
#pragma unroll
  for (unsigned chunk = 0; chunk < kDim / 32; ++chunk) {
    const uint4 k = key(chunk);
    mma_bf16(c, q[chunk * 2], k.x, k.y);
    mma_bf16(c, q[chunk * 2 + 1], k.z, k.w);
  }
}

// out += p v for 16 positions; value(group, i) gives this lane's 16 bytes (columns group * 64 + lane / 4 * 8
// on) of position 2 (lane % 4) + {0, 1, 8, 9}[i].
template <unsigned kDim, class Value>
__device__ void weigh(float (&out)[kDim / 8][4], const uint32_t (&p)[4], Value value) {
#pragma unroll
  for (unsigned group = 0; group < kDim / 64; ++group) {
    const uint4 v[4] = {value(group, 0), value(group, 1), value(group, 2), value(group, 3)};
    const uint32_t* w[4] = {&v[0].x, &v[1].x, &v[2].x, &v[3].x};
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      mma_bf16(out[group * 8 + 2 * i], p, first_of(w[0][i], w[1][i]), first_of(w[2][i], w[3][i]));
      mma_bf16(out[group * 8 + 2 * i + 1], p, second_of(w[0][i], w[1][i]), second_of(w[2][i], w[3][i]));
    }
  }
}

// -- few tokens

constexpr unsigned kStep = 32;  // positions that a warp takes at once
constexpr unsigned kDecodeWarps = 8;
// Query heads of a block at most. Their values meet in shared memory, of which some devices have 100 KiB.
template <unsigned kDim>
constexpr unsigned kMostHeads = kDim <= 128 ? 16 : 8;

struct RunningRow {  // of one of this lane's two rows
  float most = -INFINITY, sum = 0;
};

// Scores of kStep positions -> weights; what was gathered so far is scaled to the new maximum.
template <unsigned kTiles, unsigned kOut>
__device__ void soften(float (&s)[kTiles][4], RunningRow (&rows)[2], float (&out)[kOut][4]) {
#pragma unroll
  for (unsigned r = 0; r < 2; ++r) {
    float most = rows[r].most;
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t) most = fmaxf(most, fmaxf(s[t][2 * r], s[t][2 * r + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float safe = most == -INFINITY ? 0.0f : most;
    const float keep = exp2f(rows[r].most - safe);
    float sum = 0;
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t)
#pragma unroll
      for (unsigned e = 0; e < 2; ++e) sum += s[t][2 * r + e] = exp2f(s[t][2 * r + e] - safe);
    rows[r].most = most;
    rows[r].sum = rows[r].sum * keep + sum;  // of this lane's columns; added up at the end
#pragma unroll
    for (unsigned j = 0; j < kOut; ++j) {
      out[j][2 * r] *= keep;
      out[j][2 * r + 1] *= keep;
    }
  }
}

// A head as its product gave it -> norm, clipping, rotation, by one warp; `to` is shared memory.
template <unsigned kDim>
__device__ void prepare_head(const PrepareHeads& p, size_t t, const float* from, const float* norm,
                             const float* inverse, bool rotated, float* to) {
  const unsigned lane = threadIdx.x % 32;
  float x[kDim / 32], sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kDim / 32; ++i) {
    x[i] = from[i * 32 + lane];
    sum = fmaf(x[i], x[i], sum);
  }
  if (norm) {
    const float factor =
        inverse ? *inverse : __fdiv_rn(1.0f, sqrtf(warp_sum(sum) / static_cast<float>(kDim) + p.eps));
#pragma unroll
    for (unsigned i = 0; i < kDim / 32; ++i) x[i] = norm[i * 32 + lane] * (x[i] * factor);
  }
#pragma unroll
  for (unsigned i = 0; i < kDim / 32; ++i)
    to[i * 32 + lane] = p.clip > 0 ? fminf(fmaxf(x[i], -p.clip), p.clip) : x[i];
  __syncwarp();
  const unsigned half = static_cast<unsigned>(p.rope.half);
  for (unsigned i = lane; rotated && i < half; i += 32) {
    const float c = p.rope.cosine[t * half + i], s = p.rope.sine[t * half + i];
    float &a = to[p.rope.interleaved ? 2 * i : i], &b = to[p.rope.interleaved ? 2 * i + 1 : i + half];
    const float a0 = a, b0 = b;
    a = __fsub_rn(__fmul_rn(a0, c), __fmul_rn(b0, s));
    b = __fadd_rn(__fmul_rn(b0, c), __fmul_rn(a0, s));
  }
  __syncwarp();
}

struct Decode {
  PrepareHeads p;
  Attend a;
  unsigned part_positions, block_heads;
  Vectors y;
  uint32_t* counters;  // [tokens, grid x], zero before and after
};

// Shared memory: queries, the new value and key [heads + 2][kDim], later the warps' values
// [kWarps][heads][kDim]; then their maxima and sums [kWarps][heads][2] and the parts' weights
// [heads][n_parts].
template <unsigned kDim>
constexpr size_t decode_floats(size_t heads, size_t n_parts) {
  return kDecodeWarps * heads * (kDim + 2) + heads * n_parts;
}

// Four columns of a head's result: gate, floats and int8 form. Whole warps, as quantising wants them; mine:
// the columns exist.
template <unsigned kDim>
__device__ void finish_quad(const Decode& d, unsigned t, unsigned head, unsigned quad, float4 x, bool mine) {
  const Attend& a = d.a;
  if (mine && a.gate) {
    const float* gate = a.gate + t * a.gate_stride + head * a.gate_head + 4 * quad;
    x = make_float4(x.x * sigmoid_value(gate[0]), x.y * sigmoid_value(gate[1]), x.z * sigmoid_value(gate[2]),
                    x.w * sigmoid_value(gate[3]));
  }
  if (mine) reinterpret_cast<float4*>(a.out)[(size_t{t} * a.n_heads + head) * (kDim / 4) + quad] = x;
  store_quantised(x, d.y, t, mine ? head * (kDim / 4) + quad : kNowhere);
}

__device__ inline float4 scaled(float4 x, float by) {
  return make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
}

__device__ inline void add_scaled(float4& to, float4 x, float by) {
  to = make_float4(fmaf(by, x.x, to.x), fmaf(by, x.y, to.y), fmaf(by, x.z, to.z), fmaf(by, x.w, to.w));
}

// The sink of a head, as a score.
__device__ inline float sink_of(const Attend& a, unsigned head) {
  return a.sinks ? a.sinks[head] * kLog2e : -INFINITY;
}

// The parts of a row in order, then the end of it: by the block that was last to finish its part.
template <unsigned kDim>
__device__ void merge_rows(const Decode& d, unsigned t, unsigned head, unsigned n_rows, unsigned n,
                           float* weight) {
  constexpr unsigned kWarps = kDecodeWarps;
  const Attend& a = d.a;
  const float* parts = a.parts + (size_t{t} * a.n_heads + head) * a.n_parts * (kDim + 2);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const size_t row_floats = a.n_parts * (kDim + 2);
#pragma unroll 1
  for (unsigned row = warp; row < n_rows; row += kWarps) {
    const float* from = parts + row * row_floats;
    float* w = weight + row * a.n_parts;
    const float sink = sink_of(a, head + row);
    float most = sink, sum = 0;
    for (unsigned p = lane; p < n; p += 32) most = fmaxf(most, __ldcg(from + p * (kDim + 2)));
    most = warp_max(most);
    for (unsigned p = lane; p < n; p += 32) {
      w[p] = exp2f(__ldcg(from + p * (kDim + 2)) - most);
      sum += w[p] * __ldcg(from + p * (kDim + 2) + 1);
    }
    sum = warp_sum(sum) + exp2f(sink - most);
    const float inverse = __fdiv_rn(1.0f, sum);
    __syncwarp();
#pragma unroll 1
    for (unsigned i = lane; i < (kDim / 4 + 31) / 32 * 32; i += 32) {
      const bool mine = i < kDim / 4;
      float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 8
      for (unsigned p = 0; mine && p < n; ++p) {
        const auto* v = reinterpret_cast<const float2*>(from + p * (kDim + 2) + 2 + 4 * i);
        const float2 v0 = __ldcg(v), v1 = __ldcg(v + 1);
        add_scaled(x, make_float4(v0.x, v0.y, v1.x, v1.y), w[p]);
      }
      finish_quad<kDim>(d, t, head + row, i, scaled(x, inverse), mine);
    }
  }
}

// A block is some query heads of one token and key/value head, and one part of the positions; its warps take
// kStep positions in turn. The block with the newest position appends to the cache; the last to finish
// merges.
template <unsigned kDim>
__global__ void __launch_bounds__(kDecodeWarps * 32) flash_decode_kernel(const __grid_constant__ Decode d) {
  constexpr unsigned kWarps = kDecodeWarps;
  extern __shared__ __align__(16) float room[];
  __shared__ bool merges;
  const Attend& a = d.a;
  const PrepareHeads& p = d.p;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_heads = static_cast<unsigned>(a.n_heads),
                 n_kv = static_cast<unsigned>(a.n_kv_heads), group = n_heads / n_kv, heads = d.block_heads,
                 tiles = (group + heads - 1) / heads;
  const unsigned t = blockIdx.y, kv_head = blockIdx.x / tiles, first_head = blockIdx.x % tiles * heads,
                 head = kv_head * group + first_head, n_rows = min(heads, group - first_head);
  const TokenInfo token = a.tokens[t];  // of the step, like the table of pages: there for long
  const unsigned last = token.position, low = static_cast<unsigned>(first_seen(a.window, last));
  const unsigned first_part = low / d.part_positions, n_parts = last / d.part_positions - first_part + 1;
  const unsigned from = (first_part + blockIdx.z) * d.part_positions,
                 end = min(from + d.part_positions, last + 1);
  const size_t keys = head_at<kDim>(a.place.keys, kv_head), values = head_at<kDim>(a.place.values, kv_head);
  // Of kStep positions; null: none of them is seen.
  static_assert(kKvPage % kStep == 0);
  const auto page_from = [&](unsigned at) -> const std::byte* {
    return at < end && at + kStep > low ? page_of(token.pages, a.place, at) : nullptr;
  };
  const std::byte* next_page = page_from(from + warp * kStep);
  const bool newest = blockIdx.z == n_parts - 1 && warp >= kWarps - 2;
  std::byte* const last_page = newest ? page_of(token.pages, a.place, last) : nullptr;
  // What is there before the newest token: a warp's first positions, norms and rotations.
  if (const unsigned at = from + warp * kStep + lane; next_page && at < end && at < last)
    for (unsigned i = 0; i < kDim * sizeof(__nv_bfloat16); i += 128) {
      fetch_line(next_page + keys + row_at<kDim>(at) + i);
      fetch_line(next_page + values + row_at<kDim>(at) + i);
    }
  if (warp == 0 && blockIdx.z < n_parts) {
    const size_t half = p.rope.half, in_table = t * half + lane * 2;
    if (lane * 4 < kDim && !p.whole && p.q_norm) fetch_line(p.q_norm + lane * 4);
    if (lane * 4 < kDim && !p.whole && p.k_norm) fetch_line(p.k_norm + lane * 4);
    if (lane * 2 < half) fetch_line(p.rope.cosine + in_table);
    if (lane * 2 < half) fetch_line(p.rope.sine + in_table);
  }
  wait_for_previous();
  let_next_begin();
  if (blockIdx.z >= n_parts) return;

  for (unsigned r = warp; r < n_rows; r += kWarps)
    prepare_head<kDim>(p, t, p.q + t * p.q_stride + (head + r) * p.q_head,
                       p.q_norm && p.whole ? p.q_norm + (head + r) * kDim : p.q_norm,
                       p.whole ? p.inverse + 2 * t : nullptr, true, room + r * kDim);
  if (newest) {
    const bool key = warp == kWarps - 1;
    float* to = room + (heads + key) * kDim;
    const size_t at = (size_t{t} * n_kv + kv_head) * kDim;
    prepare_head<kDim>(p, t, (key ? p.k : p.v) + at,
                       !key                  ? nullptr
                       : p.k_norm && p.whole ? p.k_norm + kv_head * kDim
                                             : p.k_norm,
                       p.whole ? p.inverse + 2 * t + 1 : nullptr, key, to);
    auto* row = reinterpret_cast<__nv_bfloat16*>(last_page + (key ? keys : values) + row_at<kDim>(last));
    for (unsigned i = lane; i < kDim; i += 32) row[i] = __float2bfloat16_rn(to[i]);
  }
  __syncthreads();
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, [&](unsigned r) -> const float* { return r < n_rows ? room + r * kDim : nullptr; });
  __syncthreads();

  float out[kDim / 8][4] = {};
  RunningRow rows[2];
  const float scale = a.scale * kLog2e;
  for (unsigned at = from + warp * kStep; at < end; at += kWarps * kStep) {
    const std::byte* const page = next_page;
    next_page = page_from(at + kWarps * kStep);
    if (!page) continue;
    float s[kStep / 8][4] = {};
#pragma unroll
    for (unsigned tile = 0; tile < kStep / 8; ++tile) {
      const size_t row = row_at<kDim>(min(at + tile * 8 + lane / 4, last));
      const auto* key = reinterpret_cast<const uint4*>(page + keys + row) + lane % 4;
      score<kDim>(s[tile], q, [&](unsigned chunk) { return key[chunk * 4]; });
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        const unsigned position = at + tile * 8 + 2 * (lane % 4) + e % 2;
        s[tile][e] = position < low || position > last ? -INFINITY : s[tile][e] * scale;
      }
    }
    soften(s, rows, out);
#pragma unroll
    for (unsigned step = 0; step < kStep / 16; ++step) {
      const auto &s0 = s[2 * step], &s1 = s[2 * step + 1];
      const uint32_t weights[4] = {pack_bf16(s0[0], s0[1]), pack_bf16(s0[2], s0[3]), pack_bf16(s1[0], s1[1]),
                                   pack_bf16(s1[2], s1[3])};
      const uint4* value[4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const size_t row = row_at<kDim>(min(at + step * 16 + 2 * (lane % 4) + i % 2 + i / 2 * 8, last));
        value[i] = reinterpret_cast<const uint4*>(page + values + row) + lane / 4;
      }
      weigh<kDim>(out, weights, [&](unsigned g, unsigned i) { return value[i][g * 8]; });
    }
  }

  // The warps' shares, in order.
  float* states = room + kWarps * heads * kDim;
#pragma unroll
  for (unsigned r = 0; r < 2; ++r) {
    float sum = rows[r].sum;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const unsigned row = lane / 4 + 8 * r;
    if (row >= n_rows) continue;
    if (lane % 4 == 0) {
      states[(warp * heads + row) * 2] = rows[r].most;
      states[(warp * heads + row) * 2 + 1] = sum;
    }
    float* to = room + (warp * heads + row) * kDim;
#pragma unroll
    for (unsigned j = 0; j < kDim / 8; ++j)
#pragma unroll
      for (unsigned e = 0; e < 2; ++e) to[j / 8 * 64 + (2 * (lane % 4) + e) * 8 + j % 8] = out[j][2 * r + e];
  }
  __syncthreads();
  const unsigned quads = n_rows * (kDim / 4);
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < (quads + 31) / 32 * 32; i += blockDim.x) {
    const bool mine = i < quads;
    const unsigned row = mine ? i / (kDim / 4) : 0, quad = i % (kDim / 4);
    float most = n_parts > 1 ? -INFINITY : sink_of(a, head + row), sum = 0;
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w) most = fmaxf(most, states[(w * heads + row) * 2]);
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w) {
      const float m = states[(w * heads + row) * 2], keep = m == -INFINITY ? 0.0f : exp2f(m - most);
      sum += keep * states[(w * heads + row) * 2 + 1];
      add_scaled(x, reinterpret_cast<const float4*>(room)[(w * heads + row) * (kDim / 4) + quad], keep);
    }
    if (n_parts == 1) {
      sum += exp2f(sink_of(a, head + row) - most);
      finish_quad<kDim>(d, t, head + row, quad, scaled(x, __fdiv_rn(1.0f, sum)), mine);
    } else if (mine) {
      float* to = a.parts + ((size_t{t} * n_heads + head + row) * a.n_parts + blockIdx.z) * (kDim + 2);
      auto* columns = reinterpret_cast<float2*>(to + 2 + 4 * quad);
      columns[0] = make_float2(x.x, x.y);
      columns[1] = make_float2(x.z, x.w);
      if (quad == 0) {
        to[0] = most;
        to[1] = sum;
      }
    }
  }
  if (n_parts == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    merges = atomicInc(d.counters + t * gridDim.x + blockIdx.x, n_parts - 1) == n_parts - 1;
  __syncthreads();
  if (!merges) return;
  __threadfence();
  merge_rows<kDim>(d, t, head, n_rows, n_parts, room + kWarps * heads * (kDim + 2));
}

// -- many tokens of one sequence

constexpr unsigned kPrefillWarps = 8, kPrefillRows = kPrefillWarps * 16;

template <unsigned kDim>
struct Prefill {
  static constexpr unsigned kPositions = kDim <= 128 ? 64 : 32;  // staged at once
  static constexpr unsigned kChunks = kDim / 8;                  // of 16 bytes in a row
  static constexpr unsigned kTileBytes = kPositions * kDim * 2;
  static constexpr unsigned kBytes = 4 * kTileBytes;  // keys and values, twice
};

__device__ inline void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

// So that lanes which read at once meet different banks: keys are read as two rows of four chunks, values as
// four even or odd rows of two.
__device__ inline unsigned key_place(unsigned row, unsigned chunk) { return chunk ^ (row & 1) << 2; }
__device__ inline unsigned value_place(unsigned row, unsigned chunk) { return chunk ^ (row & 7); }

// keys, values: a head's, in the page that has the positions from `from` on.
template <unsigned kDim>
__device__ void stage(const std::byte* keys, const std::byte* values, unsigned from, unsigned last,
                      uint32_t to) {
  using P = Prefill<kDim>;
  static_assert(kKvPage % P::kPositions == 0);
  for (unsigned i = threadIdx.x; i < P::kPositions * P::kChunks; i += blockDim.x) {
    const unsigned r = i / P::kChunks, chunk = i % P::kChunks;
    const size_t at = row_at<kDim>(min(from + r, last)) + chunk * 16;
    copy_async(to + (r * P::kChunks + key_place(r, chunk)) * 16, keys + at);
    copy_async(to + P::kTileBytes + (r * P::kChunks + value_place(r, chunk)) * 16, values + at);
  }
  asm volatile("cp.async.commit_group;");
}

// A block is kPrefillRows queries (tokens times the heads that share a key/value head); the last tokens,
// which see most, come first.
template <unsigned kDim>
__global__ void __launch_bounds__(kPrefillWarps * 32, 1)
    flash_prefill_kernel(Attend a, size_t position, unsigned group, unsigned tokens_per_block) {
  wait_for_previous();
  let_next_begin();
  using P = Prefill<kDim>;
  extern __shared__ uint4 tiles[];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t block = gridDim.x - 1 - blockIdx.x, first = block * tokens_per_block, kv_head = blockIdx.y;
  const unsigned n_tokens = static_cast<unsigned>(min(size_t{tokens_per_block}, a.n - first)),
                 n_rows = n_tokens * group;
  std::byte* const* pages = a.tokens[0].pages;
  const size_t keys = head_at<kDim>(a.place.keys, blockIdx.y),
               values = head_at<kDim>(a.place.values, blockIdx.y);
  const auto offset = [&](unsigned r) {  // of row r in [n, heads, kDim]
    return ((first + r / group) * a.n_heads + kv_head * group + r % group) * size_t{kDim};
  };
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, [&](unsigned r) {
    const unsigned row = warp * 16 + r;
    return row < n_rows ? a.q + offset(row) : nullptr;
  });
  size_t row_last[2], row_low[2];
  for (unsigned r = 0; r < 2; ++r) {
    const unsigned row = min(warp * 16 + lane / 4 + 8 * r, n_rows - 1);
    row_last[r] = position + first + row / group;
    row_low[r] = first_seen(a.window, row_last[r]);
  }
  const size_t last = position + first + n_tokens - 1, low = first_seen(a.window, position + first);
  const float scale = a.scale * kLog2e;
  float out[kDim / 8][4] = {};
  RunningRow rows[2];

  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(tiles));
  size_t at = low / P::kPositions * P::kPositions;
  const auto page_from = [&](size_t p) -> const std::byte* {
    return p <= last ? page_of(pages, a.place, static_cast<unsigned>(p)) : nullptr;
  };
  const auto stage_page = [&](const std::byte* page, size_t p, uint32_t to) {
    stage<kDim>(page + keys, page + values, static_cast<unsigned>(p), static_cast<unsigned>(last), to);
  };
  stage_page(page_from(at), at, shared);
  const std::byte* next_page = page_from(at + P::kPositions);
  for (unsigned turn = 0; at <= last; at += P::kPositions, turn ^= 1) {
    const size_t next = at + P::kPositions;
    if (next <= last) {
      stage_page(next_page, next, shared + (turn ^ 1) * 2 * P::kTileBytes);
      next_page = page_from(next + P::kPositions);
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();
    const uint4* tile = tiles + turn * 2 * P::kTileBytes / 16;
    float s[P::kPositions / 8][4] = {};
#pragma unroll
    for (unsigned i = 0; i < P::kPositions / 8; ++i) {
      const unsigned r = i * 8 + lane / 4;
      score<kDim>(s[i], q,
                  [&](unsigned chunk) { return tile[r * P::kChunks + key_place(r, chunk * 4 + lane % 4)]; });
    }
    const bool whole =
        next <= row_last[0] + 1 && next <= row_last[1] + 1 && at >= row_low[0] && at >= row_low[1];
#pragma unroll
    for (unsigned i = 0; i < P::kPositions / 8; ++i)
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        const size_t p = at + i * 8 + 2 * (lane % 4) + e % 2;
        const bool seen = whole || (p >= row_low[e / 2] && p <= row_last[e / 2]);
        s[i][e] = seen ? s[i][e] * scale : -INFINITY;
      }
    soften(s, rows, out);
    const uint4* v = tile + P::kTileBytes / 16;
#pragma unroll
    for (unsigned step = 0; step < P::kPositions / 16; ++step) {
      const auto &s0 = s[2 * step], &s1 = s[2 * step + 1];
      const uint32_t p[4] = {pack_bf16(s0[0], s0[1]), pack_bf16(s0[2], s0[3]), pack_bf16(s1[0], s1[1]),
                             pack_bf16(s1[2], s1[3])};
      weigh<kDim>(out, p, [&](unsigned g, unsigned i) {
        const unsigned r = step * 16 + 2 * (lane % 4) + i % 2 + i / 2 * 8;
        return v[r * P::kChunks + value_place(r, g * 8 + lane / 4)];
      });
    }
    __syncthreads();
  }

#pragma unroll
  for (unsigned r = 0; r < 2; ++r) {
    float sum = rows[r].sum, most = rows[r].most;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const unsigned row = warp * 16 + lane / 4 + 8 * r;
    if (row >= n_rows) continue;
    const size_t head = kv_head * group + row % group, token = first + row / group;
    float keep = 1;
    if (a.sinks) {
      const float sink = a.sinks[head] * kLog2e, more = fmaxf(most, sink);
      keep = exp2f(most - more);
      sum = sum * keep + exp2f(sink - more);
    }
    const float factor = keep / sum;
    float* to = a.out + offset(row);
    const float* gate = a.gate ? a.gate + token * a.gate_stride + head * a.gate_head : nullptr;
#pragma unroll
    for (unsigned g = 0; g < kDim / 64; ++g)
#pragma unroll
      for (unsigned e = 0; e < 2; ++e)
#pragma unroll
        for (unsigned j = 0; j < 8; ++j) {
          const unsigned c = g * 64 + (2 * (lane % 4) + e) * 8 + j;
          const float x = out[g * 8 + j][2 * r + e] * factor;
          to[c] = gate ? x * sigmoid_value(gate[c]) : x;
        }
  }
}

template <class Fn>
void with_dim(size_t dim, Fn fn) {
  if (dim == 64)
    fn(std::integral_constant<unsigned, 64>{});
  else if (dim == 128)
    fn(std::integral_constant<unsigned, 128>{});
  else
    fn(std::integral_constant<unsigned, 256>{});
}

template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "shared memory of an attention kernel");
}

// Query heads of a block: few for short texts, where blocks are few and what each head takes counts; as many
// as fit for long ones, which are then read once.
unsigned block_heads(size_t dim, size_t most_positions) {
  unsigned most = 0;
  with_dim(dim, [&](auto d) { most = kMostHeads<d()>; });
  return most_positions <= 1024 ? 2 : most_positions <= 4096 ? 4 : most;
}

}  // namespace

bool flash_can(const Attend& a) {
  return a.kv == KvType::Bf16 && a.key_dim == a.value_dim && a.n_heads <= kPrefillRows * a.n_kv_heads &&
         (a.key_dim == 64 || a.key_dim == 128 || a.key_dim == 256);
}

// Some tens of blocks at four thousand positions; not more parts than a merge can take in at a million.
size_t flash_part(size_t most_positions) {
  return most_positions <= 16384 ? 256 : most_positions <= 131072 ? 512 : 2048;
}

size_t flash_parts(size_t most_positions, size_t window) {
  const size_t part = flash_part(most_positions), all = (most_positions + part - 1) / part;
  return window ? std::min(all, (window + part - 2) / part + 1) : all;
}

size_t flash_counters(const Attend& a, size_t most_positions) {
  const size_t heads = block_heads(a.key_dim, most_positions);
  return a.n * a.n_kv_heads * ((a.n_heads / a.n_kv_heads + heads - 1) / heads);
}

void flash_decode(const PrepareHeads& p, const Attend& a, size_t most_positions, const Vectors& y,
                  uint32_t* counters, cudaStream_t stream) {
  if (p.whole) whole_inverse(p, stream);
  const Decode d{
      p, a,       static_cast<unsigned>(flash_part(most_positions)), block_heads(a.key_dim, most_positions),
      y, counters};
  with_dim(a.key_dim, [&](auto dim) {
    const dim3 grid(static_cast<unsigned>(flash_counters(a, most_positions) / a.n),
                    static_cast<unsigned>(a.n), static_cast<unsigned>(a.n_parts));
    const size_t room = decode_floats<dim()>(d.block_heads, a.n_parts) * sizeof(float);
    allow_shared(flash_decode_kernel<dim()>, room);
    launch_overlapped("flash_decode", flash_decode_kernel<dim()>, grid, kDecodeWarps * 32, room, stream, d);
  });
}

void flash_prefill(const Attend& a, size_t position, cudaStream_t stream) {
  const auto group = static_cast<unsigned>(a.n_heads / a.n_kv_heads);
  const unsigned tokens = std::max(1u, kPrefillRows / group);
  with_dim(a.key_dim, [&](auto dim) {
    const dim3 grid(static_cast<unsigned>((a.n + tokens - 1) / tokens), static_cast<unsigned>(a.n_kv_heads));
    allow_shared(flash_prefill_kernel<dim()>, Prefill<dim()>::kBytes);
    launch_overlapped("flash_prefill", flash_prefill_kernel<dim()>, grid, kPrefillWarps * 32,
                      Prefill<dim()>::kBytes, stream, a, position, group, tokens);
  });
}

}  // namespace moeflux::cuda
