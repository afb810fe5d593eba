#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/pointwise.h"
#include "ops/router.h"

namespace moeflux {
namespace {

void keep_best_groups(const RouterRule& rule, std::vector<float>& choice) {
  const size_t size = choice.size() / rule.n_groups;
  std::vector<float> score(rule.n_groups);
  for (size_t g = 0; g < rule.n_groups; ++g) {
    uint32_t best[2];
    const std::span<const float> group(choice.data() + g * size, size);
    top_k_ref(group, std::min<size_t>(2, size), best);
    score[g] = size > 1 ? group[best[0]] + group[best[1]] : group[best[0]];
  }
  std::vector<uint32_t> kept(rule.top_groups);
  top_k_ref(score, rule.top_groups, kept.data());
  for (size_t g = 0; g < rule.n_groups; ++g)
    if (std::ranges::find(kept, g) == kept.end())
      std::fill_n(choice.begin() + static_cast<ptrdiff_t>(g * size), size,
                  -std::numeric_limits<float>::infinity());
}

}  // namespace

void top_k_ref(std::span<const float> x, size_t k, uint32_t* ids) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), order.end(),
                    [&](uint32_t a, uint32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  std::copy_n(order.begin(), k, ids);
}

void route_ref(const RouterRule& rule, std::span<const float> logits, uint32_t* ids, float* weights) {
  const size_t k = rule.top_k;
  std::vector<float> score(logits.begin(), logits.end());
  if (rule.kind == RouterRule::TopkSoftmax) {
    top_k_ref(score, k, ids);
    for (size_t i = 0; i < k; ++i) weights[i] = score[ids[i]];
    softmax_ref(weights, k);
    return;
  }
  if (rule.kind == RouterRule::Softmax)
    softmax_ref(score.data(), score.size());
  else
    for (float& s : score) s = sigmoid(s);
  const bool by_logit = rule.kind == RouterRule::Softmax && rule.score_bias.empty() && rule.n_groups <= 1;
  std::vector<float> choice = by_logit ? std::vector<float>(logits.begin(), logits.end()) : score;
  for (size_t e = 0; e < rule.score_bias.size(); ++e) choice[e] += rule.score_bias[e];
  if (rule.n_groups > 1) keep_best_groups(rule, choice);
  top_k_ref(choice, k, ids);
  float sum = 0;
  for (size_t i = 0; i < k; ++i) sum += weights[i] = score[ids[i]];
  if (rule.norm)
    for (size_t i = 0; i < k; ++i) weights[i] /= sum + rule.norm_eps;
  for (size_t i = 0; i < k; ++i) weights[i] *= rule.scaling;
}

}  // namespace moeflux
