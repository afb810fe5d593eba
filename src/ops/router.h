// Choosing experts from a router's logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moeflux {

// Indices of the k largest values, largest first, ties to the lower index. k <= x.size().
void top_k_ref(std::span<const float> x, size_t k, uint32_t* ids);

struct RouterRule {
  enum Kind { Softmax, Sigmoid, TopkSoftmax } kind = Softmax;
  size_t top_k = 1, n_groups = 1, top_groups = 1;
  bool norm = false;
  float norm_eps = 0, scaling = 1;
  std::span<const float> score_bias;  // empty, or one per expert: takes part in choosing only
};

// logits [E] -> ids and weights [top_k], best first.
//   Softmax       scores = softmax over all;  TopkSoftmax  softmax over the chosen logits only
//   Sigmoid       scores = sigmoid; chosen by score + bias, among the top_groups best of n_groups blocks of
//   experts
//                 (a group's score: the sum of its two best)
// Chosen is by score; by logit where a softmax over all is neither biased nor in groups, so that scores which
// round to the same are told apart.
// Then, where `norm`, divided by (their sum + norm_eps); last, times scaling.
void route_ref(const RouterRule& rule, std::span<const float> logits, uint32_t* ids, float* weights);

}  // namespace moeflux
