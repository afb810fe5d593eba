// Many vectors: int8 products on tensor cores, in the order of the contract in ops/linear.h.
//
// A block of threads computes 8 row blocks for 64 vectors, a span of 64 columns at a time. Eight chains per
// result would not fit in registers, so it takes the spans chain by chain, in the order in which the
// contract's tree adds the chains; at most three finished sums wait for their partners.
//
// Integer sums start at the bits of 1.5 * 2^23: read as a float they are that number plus the sum, exactly.
#pragma once

#include <cstddef>

#include "cuda/codes.cuh"
#include "cuda/device.h"

namespace moeflux::cuda {

struct GemmTile {  // vectors of one expert
  uint32_t expert, first, count;
};

// Row i of the product: index = order[i] or i; its vector is (pick[index] or index / share) * heads + head,
// and its result goes to row `index` of the output. Heads are the grid's third dimension.
struct GemmRows {
  const GemmTile* tiles = nullptr;  // null: rows [64 * b, 64 * b + 64)
  const uint32_t* n_tiles = nullptr;
  const uint32_t *order = nullptr, *pick = nullptr;
  uint32_t n = 0, share = 1, heads = 1;
};

struct GemmJob {
  Tiles m, up;                      // up: of gated products
  const float *bias, *up_bias;      // null: none
  const std::byte* const* records;  // where not null, pointers above are offsets into a tile's record
  Quantised x;
  GemmRows rows;
  uint32_t first_row, n_rows;  // of m, for head 0; a head further: n_rows more
  float* out;                  // not gated
  size_t out_stride, head_stride;
  bool add, behind;  // out += y + bias; behind: out = (out + y) + bias
  float clamp;       // gated
  Vectors hidden;    // gated: floats where f is there, int8 form where q is
};

inline constexpr uint32_t kGemmBlocks = 8, kGemmVectors = 64, kGemmThreads = 256;
// As many as let two blocks of threads share a multiprocessor of 228 KiB, and one run in 100 KiB.
template <class C>
inline constexpr uint32_t kGemmStages = C::words == 8 ? 3 : 2;

template <class C>
struct GemmStage {
  static constexpr uint32_t kCodes = C::words * 64;
  static constexpr uint32_t kScales = C::affine ? C::groups * 16 * 4 * 2 : 32;  // bytes at most
  uint8_t codes[kGemmBlocks][kCodes];
  uint8_t scales[kGemmBlocks][kScales];
  uint8_t q[kGemmVectors][64];
  QuantSpan span[kGemmVectors];
};

template <class C>
struct GemmShared {
  GemmStage<C> stage[kGemmStages<C>];
  float waiting[2][32][kGemmThreads];  // sums of one and of two levels of the tree
};

__device__ inline void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

inline constexpr int kExactOne = 0x4b400000;  // bits of 1.5 * 2^23

// d = start + a b, 16 rows by 8 vectors, 32 columns.
template <bool kUnsigned>
__device__ void multiply(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                         const int (&start)[4]) {
  if constexpr (kUnsigned)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start[0]), "r"(start[1]),
          "r"(start[2]), "r"(start[3]));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start[0]), "r"(start[1]),
          "r"(start[2]), "r"(start[3]));
}

// Chains in the order of the tree: 0, 4, 2, 6, 1, 5, 3, 7.
__device__ inline uint32_t chain_at(uint32_t i) { return (i >> 2) + (i >> 1 & 1) * 2 + (i & 1) * 4; }

// The spans in that order.
struct SpanWalk {
  uint32_t spans, chain = 0, s = 0;
  __device__ explicit SpanWalk(uint32_t n) : spans(n) { settle(); }
  __device__ bool done() const { return chain == 8; }
  __device__ void next() {
    s += 8;
    settle();
  }

 private:
  __device__ void settle() {
    while (s >= spans && chain < 8)
      if (++chain < 8) s = chain_at(chain);
  }
};

// Copies one span of everything into a stage: what a thread copies, and where to, is worked out once.
template <class C>
struct GemmLoader {
  const uint8_t *codes, *scales;
  const int8_t* q;
  const QuantSpan* span;
  uint32_t codes_to, scales_to, q_to, span_to;  // bytes from the start of a stage on
  uint32_t tile_bytes, span_bytes, twice;       // as in BlockSpans
  bool has_scales, has_span;

  // block(b): the bytes of row block b; vector(i): the vector of row i of the tile.
  template <class Block, class Row>
  __device__ GemmLoader(const Tiles& m, const Quantised& x, uint32_t spans, Block block, Row vector)
      : tile_bytes(static_cast<uint32_t>(m.tile_bytes)),
        span_bytes(static_cast<uint32_t>(m.span_bytes)),
        twice(static_cast<uint32_t>(m.tile_spans) - 1) {
    using Stage = GemmStage<C>;
    const uint32_t t = threadIdx.x, chunk = t % 32, line = chunk / 4;
    codes = block(t / 32) + chunk * 16;
    codes_to = offsetof(Stage, codes) + t / 32 * Stage::kCodes + (chunk ^ (line >> 1 & 1) << 1) * 16;
    const uint32_t scale_chunks = static_cast<uint32_t>(m.tile_bytes - m.scales_at) / 16;
    has_scales = t < kGemmBlocks * scale_chunks;
    scales = has_scales ? block(t / scale_chunks) + m.scales_at + t % scale_chunks * 16 : nullptr;
    scales_to = offsetof(Stage, scales) + t / scale_chunks * Stage::kScales + t % scale_chunks * 16;
    q = x.q + vector(t / 4) * spans * 64 + t % 4 * 16;
    q_to = offsetof(Stage, q) + t / 4 * 64 + (t % 4 ^ (t / 8 & 3)) * 16;
    const uint32_t v = t - (kGemmThreads - kGemmVectors);
    has_span = t >= kGemmThreads - kGemmVectors;
    span = has_span ? x.span + vector(v) * spans : nullptr;
    span_to = offsetof(Stage, span) + v * 16;
  }

  __device__ void load(uint32_t s, GemmStage<C>& stage) const {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(&stage));
    const uint32_t tile = (s >> twice) * tile_bytes, part = tile + (s & twice) * span_bytes;
#pragma unroll
    for (int i = 0; i < C::words / 8; ++i) copy16(to + codes_to + i * 512, codes + (part + i * 512));
    if (has_scales) copy16(to + scales_to, scales + tile);
    copy16(to + q_to, q + s * 64);
    if (has_span) copy16(to + span_to, span + s);
  }
};

// The words of a lane's part of a row block: rows gid and gid + 8, lines tig and tig + 4 (of 8, or of each
// 8).
template <class C>
__device__ void load_codes(const uint8_t* codes, uint32_t lane, uint32_t (&a)[2][4]) {
  const uint32_t tig = lane % 4, row = (lane / 4) ^ (tig >> 1 & 1) * 8;
  const auto word = [&](uint32_t line, uint32_t r) {
    return reinterpret_cast<const uint32_t*>(codes)[line * 16 + r];
  };
  if constexpr (C::words == 8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t w = word(tig + i / 2 * 4, row ^ (i % 2 * 8));
      if constexpr (C::type == MatrixType::Affine4) {
        a[0][i] = w & 0x0f0f0f0fu;
        a[1][i] = w >> 4 & 0x0f0f0f0fu;
      } else {
        int low, high;
        e2m1_codes(w, low, high);
        a[0][i] = static_cast<uint32_t>(low);
        a[1][i] = static_cast<uint32_t>(high);
      }
    }
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[h][i] = word(8 * h + tig + i / 2 * 4, row ^ (i % 2 * 8));
  }
}

__device__ inline void load_vectors(const uint8_t (&q)[kGemmVectors][64], uint32_t first, uint32_t lane,
                                    uint32_t (&b)[4]) {
  const uint32_t v = first + lane % 8, chunk = lane / 8 ^ (v >> 1 & 3);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&q[v][chunk * 16]))));
}

__device__ inline float exact_sum(int bits) { return __fadd_rn(__int_as_float(bits), -12582912.0f); }

// A warp's share of a stage: two row blocks, 32 vectors; c[block][8 vectors][result]. Results lie as the
// matrix instruction leaves them: rows gid and gid + 8, vectors 2 tig and 2 tig + 1.
template <class C, bool kWhole>
__device__ void add_span(const Tiles& m, const GemmStage<C>& stage, uint32_t block, uint32_t vector,
                         uint32_t count, float (&c)[2][4][4]) {
  const uint32_t lane = threadIdx.x % 32, gid = lane / 4, tig = lane % 4;
  uint32_t a[2][2][4];
  typename C::Scales scales[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    load_codes<C>(stage.codes[block + i], lane, a[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      scales[i][half] = C::scales(m, stage.scales[block + i] + (gid + 8 * half) * C::scale_bytes(m));
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    if (!kWhole && 8 * n >= count) break;
    uint32_t b[4];
    load_vectors(stage.q, vector + 8 * n, lane, b);
    const QuantSpan* x = &stage.span[vector + 8 * n + 2 * tig];
    QuantSpan xs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) xs[i] = x[i];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      constexpr bool kUnsigned = C::type == MatrixType::Affine8;
      const int start[4] = {kExactOne, kExactOne, kExactOne, kExactOne};
      int d[2][4];
      multiply<kUnsigned>(d[0], a[i][0], b[0], b[1], start);
      if constexpr (C::halves) {
        multiply<kUnsigned>(d[1], a[i][1], b[2], b[3], start);
      } else {
        const int low[4] = {d[0][0], d[0][1], d[0][2], d[0][3]};
        multiply<kUnsigned>(d[0], a[i][1], b[2], b[3], low);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const typename C::Scales& s = scales[i][r / 2];
        const QuantSpan& v = xs[r % 2];
        float& sum = c[i][n][r];
#pragma unroll
        for (int g = 0; g < C::groups; ++g) {
          sum = __fmaf_rn(__fmul_rn(s.scale[g], v.xs), exact_sum(d[g][r]), sum);
          if (C::affine) sum = __fmaf_rn(s.bias[g], C::halves ? v.xb_half[g] : v.xb, sum);
        }
      }
    }
  }
}

// Everything of a tile of results: c holds them at the end.
template <class C>
__device__ void gemm_loop(const Tiles& m, const GemmLoader<C>& loader, uint32_t spans, uint32_t block,
                          uint32_t vector, uint32_t count, GemmShared<C>& shared, float (&c)[2][4][4]) {
  SpanWalk ahead(spans);
  const auto load_next = [&](uint32_t stage) {
    if (!ahead.done()) {
      loader.load(ahead.s, shared.stage[stage]);
      ahead.next();
    }
    asm volatile("cp.async.commit_group;");
  };
#pragma unroll
  for (uint32_t i = 0; i + 1 < kGemmStages<C>; ++i) load_next(i);
  uint32_t stage = 0;
  float first[2][4][4];  // of a pair of chains
  for (uint32_t i = 0; i < 8; ++i) {
#pragma unroll
    for (int k = 0; k < 32; ++k) c[k / 16][k / 4 % 4][k % 4] = 0;
    for (uint32_t s = chain_at(i); s < spans; s += 8) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kGemmStages<C> - 2));
      __syncthreads();
      load_next(stage == 0 ? kGemmStages<C> - 1 : stage - 1);
      if (count >= 32)  // without branches between the vectors
        add_span<C, true>(m, shared.stage[stage], block, vector, count, c);
      else if (count)
        add_span<C, false>(m, shared.stage[stage], block, vector, count, c);
      stage = stage + 1 == kGemmStages<C> ? 0 : stage + 1;
    }
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      float& sum = c[k / 16][k / 4 % 4][k % 4];
      float& partner = first[k / 16][k / 4 % 4][k % 4];
      float *pair = &shared.waiting[0][k][threadIdx.x], *four = &shared.waiting[1][k][threadIdx.x];
      if (i % 2 == 0) {
        partner = sum;
      } else {
        sum = __fadd_rn(partner, sum);
        if (i % 4 == 1) {
          *pair = sum;
        } else {
          sum = __fadd_rn(*pair, sum);
          if (i == 3)
            *four = sum;
          else
            sum = __fadd_rn(*four, sum);
        }
      }
    }
  }
}

template <class T>
__device__ T* moved(T* p, const uint8_t* record) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p) + reinterpret_cast<uintptr_t>(record));
}

// h = act(gate, up) of 64 hidden values of the tile's vectors, and their int8 form.
template <class Index>
__device__ void write_hidden(const GemmJob& job, const float (&h)[kGemmVectors][68], uint32_t span,
                             uint32_t count, Index index) {
  const Vectors& to = job.hidden;
  const size_t spans = (to.cols + 63) / 64;
  for (uint32_t v = threadIdx.x / 16; v < kGemmVectors; v += kGemmThreads / 16) {
    const uint32_t lane = threadIdx.x % 16;
    const float4 x = *reinterpret_cast<const float4*>(&h[v][4 * lane]);
    QuantSpan scale;
    const int codes = quantise_span(x, scale);
    if (v >= count) continue;
    const size_t row = index(v);
    if (to.q) {
      reinterpret_cast<int*>(to.q)[(row * spans + span) * 16 + lane] = codes;
      if (lane == 0) to.span[row * spans + span] = scale;
    }
    if (to.f) {
      const float values[] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i)
        if (span * 64 + 4 * lane + i < to.cols) to.f[row * to.stride + span * 64 + 4 * lane + i] = values[i];
    }
  }
}

// kGated: row blocks of gate and up in turn, so that a warp has both of the same hidden values.
template <class C, bool kGated>
__global__ void __launch_bounds__(kGemmThreads, 2) gemm_kernel(const __grid_constant__ GemmJob job) {
  extern __shared__ __align__(128) uint8_t memory[];
  GemmShared<C>& shared = *reinterpret_cast<GemmShared<C>*>(memory);
  const GemmRows& rows = job.rows;
  uint32_t first = blockIdx.y * kGemmVectors, count = 0;
  const uint8_t* record = nullptr;
  if (rows.tiles) {
    if (blockIdx.y >= *rows.n_tiles) return;
    const GemmTile tile = rows.tiles[blockIdx.y];
    first = tile.first, count = tile.count;
    record = reinterpret_cast<const uint8_t*>(job.records[tile.expert]);
    if (!record) return;
  } else {
    count = min(kGemmVectors, rows.n - first);
  }
  const uint32_t head = blockIdx.z, head_row = job.first_row + head * job.n_rows;
  const auto index = [&](uint32_t i) { return rows.order ? rows.order[first + i] : first + i; };
  const auto vector = [&](uint32_t i) {
    const uint32_t at = index(min(i, count - 1));
    return static_cast<size_t>(rows.pick ? rows.pick[at] : at / rows.share) * rows.heads + head;
  };
  constexpr uint32_t kStep = kGated ? kGemmBlocks / 2 : kGemmBlocks;  // row blocks per matrix
  const uint32_t block0 = head_row / 16 + blockIdx.x * kStep, last = (head_row + job.n_rows - 1) / 16;
  const size_t block_bytes = job.m.n_tiles * job.m.tile_bytes;
  const auto block = [&](uint32_t b) {
    const uint8_t* data = moved(kGated && b % 2 ? job.up.data : job.m.data, record);
    return data + min(block0 + (kGated ? b / 2 : b), last) * block_bytes;
  };
  const uint32_t spans = static_cast<uint32_t>((job.m.cols + 63) / 64);
  const GemmLoader<C> loader(job.m, job.x, spans, block, vector);

  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, gid = lane / 4, tig = lane % 4;
  const uint32_t my_block = warp % 4 * 2, my_vector = warp / 4 * 32;
  float c[2][4][4];
  gemm_loop<C>(job.m, loader, spans, my_block, my_vector, count > my_vector ? count - my_vector : 0, shared,
               c);

  if constexpr (kGated) {
    auto& h = *reinterpret_cast<float(*)[kGemmVectors][68]>(&shared.waiting);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const uint32_t unit = my_block / 2 * 16 + gid + r / 2 * 8, row = blockIdx.x * 64 + unit;
        float gate = c[0][n][r], up = c[1][n][r];
        if (row < job.n_rows) {
          if (job.bias) gate = __fadd_rn(gate, moved(job.bias, record)[row]);
          if (job.up_bias) up = __fadd_rn(up, moved(job.up_bias, record)[row]);
        }
        h[my_vector + 8 * n + 2 * tig + r % 2][unit] =
            row < job.n_rows ? gated_value(gate, up, job.clamp) : 0.0f;
      }
    __syncthreads();
    write_hidden(job, h, blockIdx.x, count, index);
  } else {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t v = my_vector + 8 * n + 2 * tig + j;
        if (v >= count) continue;
        float* out = job.out + index(v) * job.out_stride + head * job.head_stride;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t row = (block0 + my_block + i / 2) * 16 + gid + i % 2 * 8 - head_row;
          if (row >= job.n_rows) continue;
          float y = c[i / 2][n][i % 2 * 2 + j];
          if (job.behind) y = __fadd_rn(out[row], y);
          if (job.bias) y = __fadd_rn(y, moved(job.bias, record)[head_row + row]);
          if (job.add) y = __fadd_rn(out[row], y);
          out[row] = y;
        }
      }
  }
}

// tiles: of vectors, in the grid; the most that there can be.
template <class C, bool kGated>
void launch_gemm(const GemmJob& job, size_t tiles, cudaStream_t stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      gemm_kernel<C, kGated>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(GemmShared<C>));
  check_cuda(allowed, "shared memory of a product of many vectors");
  const size_t rows = kGated ? 64 : 16 * kGemmBlocks;
  const dim3 grid(static_cast<unsigned>((job.n_rows + rows - 1) / rows), static_cast<unsigned>(tiles),
                  job.rows.heads);
  gemm_kernel<C, kGated><<<grid, kGemmThreads, sizeof(GemmShared<C>), stream>>>(job);
  check_launch("product of many vectors");
}

}  // namespace moeflux::cuda
