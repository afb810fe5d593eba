#include "cuda/router.h"

#include "cuda/vectors_test.h"

namespace moeflux::cuda {
namespace {

class CudaRouter : public OnDevice {};

void compare(const RouterRule& rule, size_t n_experts, uint32_t seed) {
  const size_t n = 5;
  std::vector<float> logits = noise_vector(n * n_experts, seed, 4);
  for (size_t i = 0; i + 1 < n_experts; i += 3) logits[i + 1] = logits[i];  // ties go to the lower index
  const DeviceArray<float> in(logits), weights(n * rule.top_k);
  const DeviceArray<float> bias(std::vector<float>(rule.score_bias.begin(), rule.score_bias.end()));
  const DeviceArray<uint32_t> ids(n * rule.top_k);
  RouterRule there = rule;
  if (!rule.score_bias.empty()) there.score_bias = {bias.get(), rule.score_bias.size()};
  route(there, n_experts, in.get(), n, ids.get(), weights.get(), nullptr);
  const auto got_ids = ids.values();
  const auto got = weights.values();
  for (size_t t = 0; t < n; ++t) {
    std::vector<uint32_t> want_ids(rule.top_k);
    std::vector<float> want(rule.top_k);
    route_ref(rule, {&logits[t * n_experts], n_experts}, want_ids.data(), want.data());
    for (size_t k = 0; k < rule.top_k; ++k) {
      EXPECT_EQ(got_ids[t * rule.top_k + k], want_ids[k]) << n_experts << " experts, token " << t;
      EXPECT_NEAR(got[t * rule.top_k + k], want[k], 1e-6f) << n_experts << " experts, token " << t;
    }
  }
}

TEST_F(CudaRouter, EveryRuleChoosesAsTheReference) {
  uint32_t seed = 1;
  for (const size_t n_experts : {1, 7, 32, 128, 257, 512}) {
    const size_t k = std::min<size_t>(n_experts, 8);
    const std::vector<float> bias = noise_vector(n_experts, ++seed);
    for (const auto kind : {RouterRule::Softmax, RouterRule::Sigmoid, RouterRule::TopkSoftmax}) {
      RouterRule rule;
      rule.kind = kind;
      rule.top_k = k;
      compare(rule, n_experts, ++seed);
      rule.norm = true;
      rule.norm_eps = 1e-20f;
      rule.scaling = 2.5f;
      compare(rule, n_experts, ++seed);
      if (kind != RouterRule::Sigmoid) continue;
      rule.score_bias = bias;
      compare(rule, n_experts, ++seed);
    }
  }
  for (const size_t groups : {2, 8}) {
    const std::vector<float> bias = noise_vector(64, ++seed);
    compare({.kind = RouterRule::Sigmoid,
             .top_k = 6,
             .n_groups = groups,
             .top_groups = groups / 2,
             .norm = true,
             .score_bias = bias},
            64, ++seed);
  }
}

}  // namespace
}  // namespace moeflux::cuda
