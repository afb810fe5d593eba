// Choosing experts for one token by a thread block (ops/router.h), for kernels.
#pragma once

#include "cuda/numerics.cuh"
#include "cuda/reduce.cuh"
#include "ops/router.h"

namespace moeflux::cuda {

// A RouterRule as kernels take it.
struct DeviceRule {
  RouterRule::Kind kind;
  unsigned n_experts, top_k, n_groups, top_groups;
  bool norm;
  float norm_eps, scaling;
  const float* bias;
};

// A float's place in the order of floats, as an integer above 0; NaN comes first of all.
__device__ inline uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return isnan(x) ? 1u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Threads that choose for one token: whole thread blocks of them.
constexpr unsigned kRouteThreads = 128;

// Keys of a warp, in fours.
constexpr size_t route_part(size_t n_experts) { return (n_experts + 15) / 16 * 4; }

// Numbers of shared memory that route_token needs, aligned to 16 bytes.
constexpr size_t route_room(size_t n_experts, size_t n_groups, size_t top_k) {
  const size_t part = route_part(n_experts), each = top_k < part ? top_k : part;
  return 4 * part + 8 * each + n_experts + 2 * n_groups + top_k + 2;
}

// How many of keys[0..n) come before number `at`: those above it, and of the same ones those with a lower
// number. n is a multiple of 4, the address one of 16.
__device__ inline unsigned rank_among(const uint32_t* keys, unsigned n, unsigned at) {
  const uint32_t key = keys[at];
  unsigned before = 0;
#pragma unroll 8
  for (unsigned i = 0; i < n; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(keys + i);
    const uint32_t above = key - (i + 3 < at);  // of fours before its own, the same ones count
    before += four.x > above;
    before += four.y > above;
    before += four.z > above;
    before += four.w > above;
  }
  for (unsigned i = at / 4 * 4; i < at; ++i) before += keys[i] == key;
  return before;
}

// All but the best groups of experts are out of the question: their keys are those of -infinity.
__device__ inline void keep_best_groups(const DeviceRule& rule, const float* score, uint32_t* keys,
                                        uint32_t* groups) {
  const unsigned size = rule.n_experts / rule.n_groups;
  uint32_t* kept = groups + rule.n_groups;
#pragma unroll 1
  for (unsigned g = threadIdx.x; g < rule.n_groups; g += kRouteThreads) {  // the sum of its two best
    float first = -INFINITY, second = -INFINITY;
#pragma unroll 1
    for (unsigned i = g * size; i < (g + 1) * size; ++i) {
      const float x = rule.bias ? score[i] + rule.bias[i] : score[i];
      second = fmaxf(second, fminf(first, x));
      first = fmaxf(first, x);
    }
    groups[g] = order_of(size > 1 ? first + second : first);
  }
  __syncthreads();
#pragma unroll 1
  for (unsigned g = threadIdx.x; g < rule.n_groups; g += kRouteThreads) {
    unsigned before = 0;
#pragma unroll 1
    for (unsigned other = 0; other < rule.n_groups; ++other)
      before += groups[other] > groups[g] - (other < g);
    kept[g] = before < rule.top_groups;
  }
  __syncthreads();
#pragma unroll 1
  for (unsigned e = threadIdx.x; e < rule.n_experts; e += kRouteThreads)
    if (!kept[e / size]) keys[e] = order_of(-INFINITY);
  __syncthreads();
}

struct SoftSum {  // over all experts
  float most = -INFINITY, sum = 0;
};
__device__ inline SoftSum soft_sum(const float* logits, unsigned n) {  // by a warp
  SoftSum s;
#pragma unroll 4
  for (unsigned e = threadIdx.x % 32; e < n; e += 32) s.most = fmaxf(s.most, logits[e]);
  s.most = warp_max(s.most);
#pragma unroll 4
  for (unsigned e = threadIdx.x % 32; e < n; e += 32) s.sum += expf(logits[e] - s.most);
  s.sum = warp_sum(s.sum);
  return s;
}

// Logits [n_experts], in shared memory or not -> ids and weights [top_k]; tell(k, id) is called for each
// choice as soon as it is known, by any thread. By kRouteThreads threads, each warp for a part of the
// experts: it finds the best of its own, and these are ranked together. No step waits for the one before
// except by barriers, so that it is short. The first warp writes the weights; all is there after the block's
// next barrier, and the room is free again.
template <class Tell>
__device__ inline void route_token(const DeviceRule& rule, const float* logits, float* room, uint32_t* ids,
                                   float* weights, Tell tell) {
  const unsigned n = rule.n_experts, k = rule.top_k, lane = threadIdx.x % 32, warp = threadIdx.x / 32,
                 part = static_cast<unsigned>(route_part(n)), each = min(k, part), begin = warp * part,
                 end = min(begin + part, n);
  auto *keys = reinterpret_cast<uint32_t*>(room), *found = keys + 4 * part, *found_ids = found + 4 * each;
  auto* score = reinterpret_cast<float*>(found_ids + 4 * each);
  auto *groups = reinterpret_cast<uint32_t*>(score + n), *chosen = groups + 2 * rule.n_groups;
  auto* soft_room = reinterpret_cast<float*>(chosen + k);
  const bool soft = rule.kind == RouterRule::Softmax, late = rule.kind == RouterRule::TopkSoftmax,
             by_logit = late || (soft && !rule.bias && rule.n_groups <= 1);
  SoftSum all;
  if (soft && !by_logit) all = soft_sum(logits, n);
#pragma unroll 1
  for (unsigned e = begin + lane; e < begin + part; e += 32) {
    uint32_t key = 0;  // beyond the last
    if (e < end) {
      const float x = logits[e];
      const float y = by_logit ? x : soft ? expf(x - all.most) / all.sum : sigmoid_value(x);
      if (!by_logit) score[e] = y;
      key = order_of(__fadd_rn(!by_logit && rule.bias ? y + rule.bias[e] : y, 0.0f));  // -0 is 0
    }
    keys[e] = key;
  }
  for (unsigned i = lane; i < each; i += 32) found[warp * each + i] = 0;
  __syncwarp();
  if (rule.n_groups > 1 && !late) {
    __syncthreads();
    keep_best_groups(rule, score, keys, groups);
  }
#pragma unroll 1
  for (unsigned e = lane; begin + e < end; e += 32)
    if (const unsigned rank = rank_among(keys + begin, part, e); rank < each) {
      found[warp * each + rank] = keys[begin + e];
      found_ids[warp * each + rank] = begin + e;
    }
  __syncthreads();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < 4 * each; i += kRouteThreads)
    if (found[i] != 0)
      if (const unsigned rank = rank_among(found, 4 * each, i); rank < k) {
        const uint32_t id = found_ids[i];
        tell(rank, id);
        chosen[rank] = ids[rank] = id;
      }
  if (soft && by_logit && warp == kRouteThreads / 32 - 1) {  // which has had the least to rank
    all = soft_sum(logits, n);
    if (lane == 0) soft_room[0] = all.most, soft_room[1] = all.sum;
  }
  __syncthreads();
  if (warp > 0) return;

  if (soft && by_logit) all = {soft_room[0], soft_room[1]};
  float most = -INFINITY, sum = 0;
#pragma unroll 1
  for (unsigned i = lane; late && i < k; i += 32) most = fmaxf(most, logits[chosen[i]]);
  if (late) most = warp_max(most);
  const auto value = [&](unsigned i) {
    if (!by_logit) return score[chosen[i]];
    const float x = logits[chosen[i]];
    return late ? expf(x - most) : expf(x - all.most) / all.sum;
  };
#pragma unroll 1
  for (unsigned i = lane; i < k; i += 32) sum += value(i);
  sum = warp_sum(sum);
#pragma unroll 1
  for (unsigned i = lane; i < k; i += 32) {
    const float x = value(i);
    weights[i] = late ? x / sum : (rule.norm ? x / (sum + rule.norm_eps) : x) * rule.scaling;
  }
}

inline DeviceRule device_rule(const RouterRule& rule, size_t n_experts) {
  return {rule.kind,
          static_cast<unsigned>(n_experts),
          static_cast<unsigned>(rule.top_k),
          static_cast<unsigned>(rule.n_groups),
          static_cast<unsigned>(rule.top_groups),
          rule.norm,
          rule.norm_eps,
          rule.scaling,
          rule.kind == RouterRule::TopkSoftmax || rule.score_bias.empty() ? nullptr : rule.score_bias.data()};
}

}  // namespace moeflux::cuda
