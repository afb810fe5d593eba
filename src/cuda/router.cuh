// Choosing experts for one token by one warp (ops/router.h), for kernels.
#pragma once

#include "cuda/numerics.cuh"
#include "cuda/reduce.cuh"
#include "ops/router.h"

namespace moeflux::cuda {

constexpr unsigned kWarp = 32;

// A RouterRule as kernels take it.
struct DeviceRule {
  RouterRule::Kind kind;
  unsigned n_experts, top_k, n_groups, top_groups;
  bool norm;
  float norm_eps, scaling;
  const float* bias;
};

struct Best {
  float value;
  unsigned index;
};

__device__ inline bool better(Best a, Best b) {
  return a.value != b.value ? a.value > b.value : a.index < b.index;
}

__device__ inline Best warp_best(Best x) {
  for (int step = 16; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(0xffffffffu, x.value, step),
                     __shfl_xor_sync(0xffffffffu, x.index, step)};
    if (better(other, x)) x = other;
  }
  return x;
}

// The best of x[0..n) that is not marked as taken (NaN); every lane gets it.
__device__ inline Best best_of(const float* x, unsigned n, unsigned lane) {
  Best best{-INFINITY, 0xffffffffu};
  for (unsigned i = lane; i < n; i += kWarp) {
    const Best mine{x[i], i};
    if (!isnan(mine.value) && better(mine, best)) best = mine;
  }
  return warp_best(best);
}

__device__ inline void softmax(float* x, unsigned n, unsigned lane) {
  float most = -INFINITY, sum = 0;
  for (unsigned i = lane; i < n; i += kWarp) most = fmaxf(most, x[i]);
  most = warp_max(most);
  for (unsigned i = lane; i < n; i += kWarp) sum += x[i] = expf(x[i] - most);
  sum = warp_sum(sum);
  for (unsigned i = lane; i < n; i += kWarp) x[i] /= sum;
  __syncwarp();
}

// All but the best groups of experts are out of the question. groups: n_groups floats.
__device__ inline void keep_best_groups(const DeviceRule& rule, float* choice, float* groups, unsigned lane) {
  const unsigned size = rule.n_experts / rule.n_groups;
  for (unsigned g = lane; g < rule.n_groups; g += kWarp) {  // a group's score: the sum of its two best
    float first = -INFINITY, second = -INFINITY;
    for (unsigned i = g * size; i < (g + 1) * size; ++i) {
      const float x = choice[i];
      if (x > first) {
        second = first;
        first = x;
      } else if (x > second) {
        second = x;
      }
    }
    groups[g] = size > 1 ? first + second : first;
  }
  __syncwarp();
  for (unsigned i = 0; i < rule.top_groups; ++i) {
    const Best best = best_of(groups, rule.n_groups, lane);
    if (lane == 0) groups[best.index] = NAN;
    __syncwarp();
  }
  for (unsigned e = lane; e < rule.n_experts; e += kWarp)
    if (!isnan(groups[e / size])) choice[e] = -INFINITY;
  __syncwarp();
}

// A float's place in the order of floats, as an integer; NaN comes first of all, and with what is taken.
__device__ inline uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return isnan(x) ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// One group of up to 32 * kEach experts and up to 32 picks, without shared memory: lane l has experts l, l +
// 32, ..
template <unsigned kEach>
__device__ inline void route_quickly(const DeviceRule& rule, const float* logits, unsigned lane,
                                     uint32_t* ids, float* weights) {
  float score[kEach];
  uint32_t left[kEach];  // order of what may still be chosen
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const unsigned e = lane + kWarp * j;
    score[j] = e < rule.n_experts ? logits[e] : -INFINITY;
    if (rule.kind == RouterRule::Sigmoid) score[j] = sigmoid_value(score[j]);
  }
  if (rule.kind == RouterRule::Softmax) {
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) most = fmaxf(most, score[j]);
    most = warp_max(most);
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) sum += score[j] = expf(score[j] - most);
    sum = warp_sum(sum);
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) score[j] /= sum;
  }
#pragma unroll
  for (unsigned j = 0; j < kEach; ++j) {
    const unsigned e = lane + kWarp * j;
    left[j] = e < rule.n_experts ? order_of(rule.bias ? score[j] + rule.bias[e] : score[j]) : 0u;
  }
  float weight = 0, sum = 0, most = -INFINITY;
  unsigned id = 0;
  for (unsigned k = 0; k < rule.top_k; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j) best = max(best, left[j]);
    best = __reduce_max_sync(0xffffffffu, best);
    unsigned where = 0xffffffffu;  // the lowest index that has it
#pragma unroll
    for (unsigned j = kEach; j-- > 0;)
      if (left[j] == best) where = lane + kWarp * j;
    where = min(__reduce_min_sync(0xffffffffu, where), rule.n_experts - 1);
    float s = 0;
#pragma unroll
    for (unsigned j = 0; j < kEach; ++j)
      if (where == lane + kWarp * j) {
        s = score[j];
        left[j] = 0;
      }
    s = __shfl_sync(0xffffffffu, s, where % kWarp);
    sum += s;
    most = fmaxf(most, s);
    if (lane == k) weight = s, id = where;
  }
  if (rule.kind == RouterRule::TopkSoftmax) {
    const float e = lane < rule.top_k ? expf(weight - most) : 0.0f;
    weight = e / warp_sum(e);
  } else {
    if (rule.norm) weight /= sum + rule.norm_eps;
    weight *= rule.scaling;
  }
  if (lane >= rule.top_k) return;
  ids[lane] = id;
  weights[lane] = weight;
}

// Floats of shared memory that route_token needs.
constexpr size_t route_room(size_t n_experts, size_t n_groups) { return 2 * n_experts + n_groups; }

// One warp. logits [n_experts] -> ids and weights [top_k]; lane k holds pick k until the end, so that nothing
// is read back from memory.
__device__ inline void route_token(const DeviceRule& rule, const float* logits, float* room, unsigned lane,
                                   uint32_t* ids, float* weights) {
  const bool quick = rule.top_k <= kWarp && (rule.n_groups == 1 || rule.kind == RouterRule::TopkSoftmax);
  if (quick && rule.n_experts <= 4 * kWarp) return route_quickly<4>(rule, logits, lane, ids, weights);
  if (quick && rule.n_experts <= 8 * kWarp) return route_quickly<8>(rule, logits, lane, ids, weights);
  if (quick && rule.n_experts <= 16 * kWarp) return route_quickly<16>(rule, logits, lane, ids, weights);
  const unsigned n = rule.n_experts;
  float *score = room, *choice = room + n, *groups = choice + n;
  for (unsigned e = lane; e < n; e += kWarp)
    score[e] = rule.kind == RouterRule::Sigmoid ? sigmoid_value(logits[e]) : logits[e];
  __syncwarp();
  if (rule.kind == RouterRule::Softmax) softmax(score, n, lane);
  for (unsigned e = lane; e < n; e += kWarp) choice[e] = rule.bias ? score[e] + rule.bias[e] : score[e];
  __syncwarp();
  if (rule.kind != RouterRule::TopkSoftmax && rule.n_groups > 1) keep_best_groups(rule, choice, groups, lane);

  float sum = 0, most = -INFINITY;
  for (unsigned first = 0; first < rule.top_k; first += kWarp) {  // once, but for very large choices
    float weight = 0;
    unsigned id = 0;
    for (unsigned k = first; k < min(first + kWarp, rule.top_k); ++k) {
      Best best = best_of(choice, n, lane);
      if (best.index == 0xffffffffu) best.index = 0;  // all are NaN: no choice is right, but none is wild
      const float s = score[best.index];
      sum += s;
      most = fmaxf(most, s);
      if (lane == k - first) weight = s, id = best.index;
      __syncwarp();
      if (lane == 0) choice[best.index] = NAN;
      __syncwarp();
    }
    if (first + lane < rule.top_k) {
      ids[first + lane] = id;
      weights[first + lane] = weight;
    }
    if (rule.top_k <= kWarp) {
      if (rule.kind == RouterRule::TopkSoftmax) {
        const float e = lane < rule.top_k ? expf(weight - most) : 0.0f;
        weight = e / warp_sum(e);
      } else {
        if (rule.norm) weight /= sum + rule.norm_eps;
        weight *= rule.scaling;
      }
      if (lane < rule.top_k) weights[lane] = weight;
      return;
    }
  }
  __syncwarp();
  if (rule.kind == RouterRule::TopkSoftmax) return softmax(weights, rule.top_k, lane);
  for (unsigned k = lane; k < rule.top_k; k += kWarp)
    weights[k] = (rule.norm ? weights[k] / (sum + rule.norm_eps) : weights[k]) * rule.scaling;
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
