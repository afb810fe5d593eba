#include "cuda/numerics.cuh"
#include "cuda/overlap.cuh"
#include "cuda/reduce.cuh"
#include "cuda/router.cuh"
#include "cuda/shortlist.h"

namespace moeflux::cuda {
namespace {

constexpr unsigned kWarps = 8, kThreads = 32 * kWarps, kEach = 4, kGrid = 64;
constexpr size_t kMostBlocks = 11776;  // whose maxima fit in shared memory
constexpr float kMostFinite = 3.402823466e38f;
static_assert(kLogitBlock == 64);

// -0 is 0.
__device__ inline uint32_t logit_order(float x) { return order_of(__fadd_rn(x, 0.0f)); }

// ops/shortlist.h: rank_key.
__device__ inline uint64_t device_rank_key(float x, uint32_t id) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return uint64_t{bits >> 31 ? bits : ~bits & 0x7fffffffu} << 32 | id;
}

// ops/token_weight.h: weight_of.
__device__ inline uint64_t device_weight(float exponent) {
  if (!(exponent >= kLeastExponent)) return 0;
  const float scaled = __fmul_rn(exp_value(exponent), kHalfWeight), high = rintf(scaled),
              low = rintf(__fmul_rn(__fsub_rn(scaled, high), kHalfWeight));
  return static_cast<uint64_t>((static_cast<int64_t>(high) << 20) + static_cast<int64_t>(low));
}

// The largest of each block of logits; NaN where one is damaged. Clears the results.
__global__ void __launch_bounds__(kThreads)
    maxima_kernel(const float* logits, unsigned n_vocab, unsigned blocks, float* maxima, Shortlist* out) {
  wait_for_previous();
  let_next_begin();
  const unsigned lane = threadIdx.x % 32, row = blockIdx.y,
                 first = (blockIdx.x * kWarps + threadIdx.x / 32) * kEach;
  if (blockIdx.x == 0 && threadIdx.x == 0) out[row].total = out[row].n = 0;
  logits += size_t{row} * n_vocab;
  float x[kEach][2];
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i)
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned at = (first + i) * kLogitBlock + half * 32 + lane;
      x[i][half] = at < n_vocab ? __ldcg(logits + at) : -INFINITY;
    }
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) {
    const bool damaged = !(x[i][0] <= kMostFinite) || !(x[i][1] <= kMostFinite);
    const float most = warp_max(fmaxf(x[i][0], x[i][1]));
    const bool any = __any_sync(0xffffffffu, damaged);
    if (lane == 0 && first + i < blocks) maxima[size_t{row} * blocks + first + i] = any ? NAN : most;
  }
}

// The largest number, of the leading half of its bits, that at least k of n numbers in shared memory reach;
// by the whole block.
__device__ uint32_t reached_by(const uint32_t* orders, unsigned n, unsigned k) {
  __shared__ unsigned counts[2][kWarps];
  uint32_t floor = 0;
#pragma unroll 1
  for (unsigned bit = 32; bit-- > 16;) {
    const uint32_t tried = floor | 1u << bit;
    unsigned mine = 0;
    for (unsigned i = threadIdx.x; i < n; i += kThreads) mine += orders[i] >= tried;
    mine = __reduce_add_sync(0xffffffffu, mine);
    if (threadIdx.x % 32 == 0) counts[bit % 2][threadIdx.x / 32] = mine;
    __syncthreads();
    unsigned all = 0;
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w) all += counts[bit % 2][w];
    if (all >= k) floor = tried;
  }
  return floor;
}

// Every thread block finds the floor of the list, and goes through its share of the blocks of logits.
__global__ void __launch_bounds__(kThreads)
    list_kernel(const float* logits, unsigned n_vocab, unsigned blocks, const ShortlistWish* wishes,
                const float* maxima, Shortlist* out) {
  extern __shared__ uint32_t orders[];  // of the maxima
  __shared__ float room[33];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
  const ShortlistWish wish = wishes[row];  // of the step: there for long
  wait_for_previous();
  let_next_begin();
  logits += size_t{row} * n_vocab;
  maxima += size_t{row} * blocks;
  float most = -INFINITY;
  bool damaged = false;
  for (unsigned b = threadIdx.x; b < blocks; b += kThreads) {
    const float x = __ldcg(maxima + b);
    damaged |= isnan(x);
    most = fmaxf(most, x);
    orders[b] = logit_order(x);
  }
  if (__syncthreads_or(damaged)) return;
  most = block_max(most, room);
  const uint32_t least = logit_order(-kMostFinite);
  uint32_t floor = least;
  if (wish.best == 1)
    floor = max(least, logit_order(most));
  else if (wish.best <= blocks)
    floor = max(least, reached_by(orders, blocks, wish.best));
  uint64_t sum = 0;
#pragma unroll 1
  for (unsigned b = blockIdx.x * kWarps + warp; b < blocks; b += kGrid * kWarps) {
    const float block_most = __ldcg(maxima + b);
    const bool lists = orders[b] >= floor,
               weighs = wish.inverse_temperature > 0 &&
                        __fmul_rn(__fsub_rn(block_most, most), wish.inverse_temperature) >= kLeastExponent;
    if (!lists && !weighs) continue;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned id = b * kLogitBlock + half * 32 + lane;
      if (id >= n_vocab) continue;
      const float x = __ldcg(logits + id);
      if (weighs) sum += device_weight(__fmul_rn(__fsub_rn(x, most), wish.inverse_temperature));
      if (!lists || logit_order(x) < floor) continue;
      if (const unsigned at = atomicAdd(&out[row].n, 1); at < kMostListed)
        out[row].keys[at] = device_rank_key(x, id);
    }
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0 && sum > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&out[row].total), static_cast<unsigned long long>(sum));
}

}  // namespace

bool shortlist_can(size_t n_vocab) { return shortlist_blocks(n_vocab) <= kMostBlocks; }

void shortlist(const float* logits, size_t n, size_t n_vocab, const ShortlistWish* wishes, float* maxima,
               Shortlist* out, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(shortlist_blocks(n_vocab)),
             vocab = static_cast<unsigned>(n_vocab), rows = static_cast<unsigned>(n);
  launch_overlapped("maxima of logits", maxima_kernel,
                    dim3((blocks + kWarps * kEach - 1) / (kWarps * kEach), rows), kThreads, 0, stream, logits,
                    vocab, blocks, maxima, out);
  launch_overlapped("shortlist", list_kernel, dim3(kGrid, rows), kThreads, blocks * sizeof(uint32_t), stream,
                    logits, vocab, blocks, wishes, static_cast<const float*>(maxima), out);
}

}  // namespace moeflux::cuda
