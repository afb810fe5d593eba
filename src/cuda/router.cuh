// Choosing experts for one token by one warp (ops/router.h), for kernels.
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

// Takes the largest of keys[0..n) out, n_taken times; of the same ones that with the lowest index. Each lane
// knows the best of its own keys: it looks through them again only when that was the one. By one warp.
__device__ inline void take_best(uint32_t* keys, unsigned n, unsigned n_taken, uint32_t* taken) {
  const unsigned lane = threadIdx.x % 32;
  uint32_t best = 0, at = UINT32_MAX;
  const auto look = [&] {
    best = 0;
#pragma unroll 4
    for (unsigned i = lane; i < n; i += 32) {
      const uint32_t key = keys[i];
      if (key > best) best = key, at = i;
    }
  };
  look();
#pragma unroll 1
  for (unsigned k = 0; k < n_taken; ++k) {
    const uint32_t most = __reduce_max_sync(0xffffffffu, best);
    const uint32_t first = __reduce_min_sync(0xffffffffu, best == most ? at : UINT32_MAX);
    if (lane == 0) taken[k] = first;
    if (at == first) {
      keys[first] = 0;
      look();
    }
  }
  __syncwarp();
}

// Numbers of shared memory that route_token needs.
constexpr size_t route_room(size_t n_experts, size_t n_groups, size_t top_k) {
  return 2 * n_experts + 2 * n_groups + top_k;
}

// All but the best groups of experts are out of the question: their keys are those of -infinity.
__device__ inline void keep_best_groups(const DeviceRule& rule, const float* score, uint32_t* keys,
                                        uint32_t* groups) {
  const unsigned size = rule.n_experts / rule.n_groups, lane = threadIdx.x % 32;
  uint32_t* best = groups + rule.n_groups;
#pragma unroll 1
  for (unsigned g = lane; g < rule.n_groups; g += 32) {  // the sum of its two best
    float first = -INFINITY, second = -INFINITY;
#pragma unroll 1
    for (unsigned i = g * size; i < (g + 1) * size; ++i) {
      const float x = rule.bias ? score[i] + rule.bias[i] : score[i];
      second = fmaxf(second, fminf(first, x));
      first = fmaxf(first, x);
    }
    groups[g] = order_of(size > 1 ? first + second : first);
  }
  __syncwarp();
  take_best(groups, rule.n_groups, rule.top_groups, best);  // which leaves zeros where it took
#pragma unroll 1
  for (unsigned e = lane; e < rule.n_experts; e += 32)
    if (groups[e / size] != 0) keys[e] = order_of(-INFINITY);
  __syncwarp();
}

// Logits [n_experts], in shared memory or not -> ids and weights [top_k], by one warp. The room is free again
// afterwards.
__device__ inline void route_token(const DeviceRule& rule, const float* logits, float* room, uint32_t* ids,
                                   float* weights) {
  const unsigned n = rule.n_experts, lane = threadIdx.x % 32;
  float* score = room;
  auto* keys = reinterpret_cast<uint32_t*>(score + n);
  uint32_t *groups = keys + n, *chosen = groups + 2 * rule.n_groups;
  const bool soft = rule.kind == RouterRule::Softmax, late = rule.kind == RouterRule::TopkSoftmax;
  float most = -INFINITY, sum = 0;
  if (soft) {
#pragma unroll 4
    for (unsigned e = lane; e < n; e += 32) most = fmaxf(most, logits[e]);
    most = warp_max(most);
  }
#pragma unroll 4
  for (unsigned e = lane; e < n; e += 32) {
    const float x = logits[e];
    sum += score[e] = soft ? expf(x - most) : rule.kind == RouterRule::Sigmoid ? sigmoid_value(x) : x;
  }
  if (soft) sum = warp_sum(sum);
#pragma unroll 4
  for (unsigned e = lane; e < n; e += 32) {
    if (soft) score[e] /= sum;
    keys[e] = order_of(rule.bias ? score[e] + rule.bias[e] : score[e]);
  }
  __syncwarp();
  if (rule.n_groups > 1 && !late) keep_best_groups(rule, score, keys, groups);
  take_best(keys, n, rule.top_k, chosen);

  most = -INFINITY;
#pragma unroll 1
  for (unsigned k = lane; late && k < rule.top_k; k += 32) most = fmaxf(most, score[chosen[k]]);
  if (late) most = warp_max(most);
  sum = 0;
#pragma unroll 1
  for (unsigned k = lane; k < rule.top_k; k += 32) {
    const float x = score[chosen[k]];
    sum += late ? expf(x - most) : x;
  }
  sum = warp_sum(sum);
#pragma unroll 1
  for (unsigned k = lane; k < rule.top_k; k += 32) {
    float weight = score[chosen[k]];
    if (late)
      weight = expf(weight - most) / sum;
    else
      weight = (rule.norm ? weight / (sum + rule.norm_eps) : weight) * rule.scaling;
    ids[k] = chosen[k];
    weights[k] = weight;
  }
  __syncwarp();
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
