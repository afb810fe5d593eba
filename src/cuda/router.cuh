// Choosing experts for one token by one block of threads (ops/router.h), for kernels. All experts are ranked
// at once, each by a count of those that come before it: a choice takes a few steps, however many are chosen.
#pragma once

#include "cuda/numerics.cuh"
#include "cuda/reduce.cuh"
#include "ops/router.h"

namespace moeflux::cuda {

constexpr unsigned kRouteThreads = 128;

// A RouterRule as kernels take it.
struct DeviceRule {
  RouterRule::Kind kind;
  unsigned n_experts, top_k, n_groups, top_groups;
  bool norm;
  float norm_eps, scaling;
  const float* bias;
};

// A float's place in the order of floats, as an integer; NaN comes first of all.
__device__ inline uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return isnan(x) ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// How many of keys[0..n) come before keys[i]: the larger ones, and of the same the ones with a lower index.
// keys is aligned to 16 bytes and has zeros up to a multiple of four.
__device__ inline unsigned rank_of(const uint32_t* keys, unsigned n, unsigned i) {
  const uint32_t mine = keys[i];
  unsigned before = 0;
#pragma unroll 4
  for (unsigned j = 0; j < n; j += 4) {
    const uint4 k = *reinterpret_cast<const uint4*>(keys + j);
    before += k.x > mine || (k.x == mine && j < i);
    before += k.y > mine || (k.y == mine && j + 1 < i);
    before += k.z > mine || (k.z == mine && j + 2 < i);
    before += k.w > mine || (k.w == mine && j + 3 < i);
  }
  return before;
}

constexpr size_t route_pad(size_t n) { return (n + 3) / 4 * 4; }

// Floats of shared memory that route_token needs, aligned to 16 bytes.
constexpr size_t route_room(size_t n_experts, size_t n_groups, size_t top_k) {
  return 8 + 2 * route_pad(n_experts) + route_pad(n_groups) + 2 * top_k;
}

// All but the best groups of experts are out of the question: their keys are those of -infinity.
__device__ inline void keep_best_groups(const DeviceRule& rule, const float* score, uint32_t* keys,
                                        uint32_t* groups) {
  const unsigned size = rule.n_experts / rule.n_groups;
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
  if (threadIdx.x < route_pad(rule.n_groups) - rule.n_groups) groups[rule.n_groups + threadIdx.x] = 0;
  __syncthreads();
#pragma unroll 1
  for (unsigned e = threadIdx.x; e < rule.n_experts; e += kRouteThreads)
    if (rank_of(groups, rule.n_groups, e / size) >= rule.top_groups) keys[e] = order_of(-INFINITY);
  __syncthreads();
}

// Logits [n_experts] -> ids and weights [top_k], by kRouteThreads threads. The room is free again after a
// barrier.
__device__ inline void route_token(const DeviceRule& rule, const float* logits, float* room, uint32_t* ids,
                                   float* weights) {
  const unsigned n = rule.n_experts, pad = static_cast<unsigned>(route_pad(n));
  float* score = room + 8;
  auto* keys = reinterpret_cast<uint32_t*>(score + pad);
  uint32_t *groups = keys + pad, *chosen = groups + route_pad(rule.n_groups);
  auto* chosen_score = reinterpret_cast<float*>(chosen + rule.top_k);
  const bool soft = rule.kind == RouterRule::Softmax;
  float most = -INFINITY, sum = 0;
  if (soft) {
#pragma unroll 1
    for (unsigned e = threadIdx.x; e < n; e += kRouteThreads) most = fmaxf(most, logits[e]);
    most = reduce_four<true>(most, room);
  }
#pragma unroll 1
  for (unsigned e = threadIdx.x; e < n; e += kRouteThreads) {
    const float x = logits[e];
    sum += score[e] = soft ? expf(x - most) : rule.kind == RouterRule::Sigmoid ? sigmoid_value(x) : x;
  }
  if (soft) sum = reduce_four<false>(sum, room + 4);
#pragma unroll 1
  for (unsigned e = threadIdx.x; e < n; e += kRouteThreads) {
    if (soft) score[e] /= sum;
    keys[e] = order_of(rule.bias ? score[e] + rule.bias[e] : score[e]);
  }
  if (threadIdx.x < pad - n) keys[n + threadIdx.x] = 0;
  __syncthreads();
  if (rule.n_groups > 1 && rule.kind != RouterRule::TopkSoftmax) keep_best_groups(rule, score, keys, groups);
#pragma unroll 1
  for (unsigned e = threadIdx.x; e < n; e += kRouteThreads)
    if (const unsigned k = rank_of(keys, n, e); k < rule.top_k) {
      chosen[k] = e;
      chosen_score[k] = score[e];
    }
  __syncthreads();
  if (threadIdx.x >= 32) return;

  const bool late = rule.kind == RouterRule::TopkSoftmax;
  most = -INFINITY;
#pragma unroll 1
  for (unsigned k = threadIdx.x; k < rule.top_k; k += 32) most = fmaxf(most, chosen_score[k]);
  if (late) most = warp_max(most);
  sum = 0;
#pragma unroll 1
  for (unsigned k = threadIdx.x; k < rule.top_k; k += 32)
    sum += late ? expf(chosen_score[k] - most) : chosen_score[k];
  sum = warp_sum(sum);
#pragma unroll 1
  for (unsigned k = threadIdx.x; k < rule.top_k; k += 32) {
    float weight = chosen_score[k];
    if (late)
      weight = expf(weight - most) / sum;
    else
      weight = (rule.norm ? weight / (sum + rule.norm_eps) : weight) * rule.scaling;
    ids[k] = chosen[k];
    weights[k] = weight;
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
