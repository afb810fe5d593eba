#include "ops/pointwise.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/delta.h"
#include "ops/router.h"

namespace moeflux {
namespace {

TEST(Pointwise, RmsNorm) {
  const std::vector<float> x = {1, -2, 3}, w = {1.1f, 1.0f, 0.5f};
  float out[3];
  rms_norm_ref(x, w, 1e-6f, out);
  EXPECT_NEAR(out[0], 0.509201000, 1e-6);
  EXPECT_NEAR(out[1], -0.925820001, 1e-6);
  EXPECT_NEAR(out[2], 0.694365000, 1e-6);
}

TEST(Pointwise, ClampedSwiglu) {
  const float gate[] = {1.0f, -2.0f, 9.0f}, up[] = {0.5f, 3.0f, -8.0f};
  float out[3];
  clamped_swiglu_ref(gate, up, 3, 7.0f, out);
  EXPECT_NEAR(out[0], 1.268693649, 1e-6);
  EXPECT_NEAR(out[1], -0.257365507, 1e-6);
  EXPECT_NEAR(out[2], -41.999718770, 1e-4);
}

TEST(Pointwise, SoftmaxWithSink) {
  float x[] = {1, 2, 0.5f};
  softmax_ref(x, 3, 1.5f);
  EXPECT_NEAR(x[0], 0.167405097, 1e-6);
  EXPECT_NEAR(x[1], 0.455054234, 1e-6);
  EXPECT_NEAR(x[2], 0.101536324, 1e-6);
}

TEST(Pointwise, SoftplusIsLinearAboveTwenty) {
  EXPECT_EQ(softplus(21.0f), 21.0f);
  EXPECT_NEAR(softplus(0.0f), 0.693147181, 1e-6);
}

TEST(Pointwise, RopeLeavesTheRestAloneAndTurnsBothLayoutsAlike) {
  const std::vector<float> f = {1.0f, 0.1f};
  float half[] = {1, 2, 3, 4, 5}, pairs[] = {1, 3, 2, 4, 5};
  rope_ref(half, f, 1.0f, false, 3);
  rope_ref(pairs, f, 1.0f, true, 3);
  EXPECT_EQ(half[0], pairs[0]);
  EXPECT_EQ(half[2], pairs[1]);
  EXPECT_EQ(half[1], pairs[2]);
  EXPECT_EQ(half[3], pairs[3]);
  EXPECT_EQ(half[4], 5);
  EXPECT_NEAR(half[0], std::cos(3.0) - 3 * std::sin(3.0), 1e-5);
}

TEST(Router, GroupedSigmoid) {
  const std::vector<float> logits = {0.2f, -1, 1.5f, 0, -0.3f, 2, 0.9f, -2},
                           bias = {0.05f, 0, -0.6f, 0.3f, 0, -0.1f, 0.2f, 0.5f};
  const RouterRule rule{.kind = RouterRule::Sigmoid,
                        .top_k = 3,
                        .n_groups = 4,
                        .top_groups = 2,
                        .norm = true,
                        .norm_eps = 1e-20f,
                        .scaling = 2.5f,
                        .score_bias = bias};
  uint32_t ids[3];
  float weights[3];
  route_ref(rule, logits, ids, weights);
  EXPECT_EQ(ids[0], 6u);
  EXPECT_EQ(ids[1], 5u);
  EXPECT_EQ(ids[2], 7u);
  EXPECT_NEAR(weights[0], 1.038823036, 1e-6);
  EXPECT_NEAR(weights[1], 1.287000400, 1e-6);
  EXPECT_NEAR(weights[2], 0.174176564, 1e-6);
}

TEST(Router, NegativeChosenScoresStayInTheirGroups) {  // experts outside the kept groups never win
  const std::vector<float> logits = {-9, -9, 5, 5}, bias = {-3, -3, -30, -30};
  const RouterRule rule{
      .kind = RouterRule::Sigmoid, .top_k = 2, .n_groups = 2, .top_groups = 1, .score_bias = bias};
  uint32_t ids[2];
  float weights[2];
  route_ref(rule, logits, ids, weights);
  EXPECT_EQ(ids[0], 0u);
  EXPECT_EQ(ids[1], 1u);
}

TEST(Router, TiesGoToTheLowerIndex) {
  const std::vector<float> x = {1, 3, 3, 2, 3};
  uint32_t ids[3];
  top_k_ref(x, 3, ids);
  EXPECT_EQ(ids[0], 1u);
  EXPECT_EQ(ids[1], 2u);
  EXPECT_EQ(ids[2], 4u);
}

// Where scores are too small to tell apart, the larger logit still comes first.
TEST(Router, SoftmaxChoosesByLogits) {
  const std::vector<float> logits = {100, 0, -200, -150};
  const RouterRule rule{.kind = RouterRule::Softmax, .top_k = 3, .score_bias = {}};
  uint32_t ids[3];
  float weights[3];
  route_ref(rule, logits, ids, weights);
  EXPECT_EQ(std::vector(ids, ids + 3), (std::vector<uint32_t>{0, 1, 3}));
  EXPECT_EQ(weights[2], 0);
}

TEST(Router, TopkSoftmaxNormalisesOverTheChosen) {
  const std::vector<float> logits = {1, 2, 3};
  const RouterRule rule{.kind = RouterRule::TopkSoftmax, .top_k = 2, .score_bias = {}};
  uint32_t ids[2];
  float weights[2];
  route_ref(rule, logits, ids, weights);
  EXPECT_EQ(ids[0], 2u);
  EXPECT_NEAR(weights[0], 0.731058579, 1e-6);
  EXPECT_NEAR(weights[0] + weights[1], 1, 1e-6);
}

struct DeltaFixture {
  DeltaFixture(size_t dk, size_t dv)
      : state(dk * dv), keys(kDeltaBlock * dk), values(kDeltaBlock * dv), decay(kDeltaBlock) {
    head = {dk, dv, state.data(), keys.data(), values.data(), decay.data()};
  }
  std::vector<float> state, keys, values, decay;
  DeltaHead head;
};

TEST(Delta, KnownValues) {
  DeltaFixture f(2, 2);
  const float q[][2] = {{1, 2}, {-1, 0.5f}, {0.2f, 0.2f}}, k[][2] = {{0.5f, -1}, {2, 1}, {1, -1}},
              v[][2] = {{1, 0}, {-0.5f, 2}, {0.25f, 0.75f}};
  const float beta[] = {0.574442517f, 0.331812228f, 0.817574476f},
              g[] = {-1.023785093f, -2.105345190f, -0.165212685f};
  const double want[][2] = {{-0.243715198, 0}, {0.030807455, -0.281551871}, {-0.107607023, 0.377376562}};
  for (size_t t = 0; t < 3; ++t) {
    float qn[2], kn[2], out[2];
    const float lq = std::sqrt(q[t][0] * q[t][0] + q[t][1] * q[t][1] + 1e-6f),
                lk = std::sqrt(k[t][0] * k[t][0] + k[t][1] * k[t][1] + 1e-6f);
    for (int i = 0; i < 2; ++i) qn[i] = q[t][i] / lq / std::sqrt(2.0f), kn[i] = k[t][i] / lk;
    delta_step_ref(f.head, t, qn, kn, v[t], beta[t], g[t], out);
    EXPECT_NEAR(out[0], want[t][0], 2e-6);
    EXPECT_NEAR(out[1], want[t][1], 2e-6);
  }
}

// The blocked form over three blocks equals the plain recurrence in double precision.
TEST(Delta, BlocksEqualTheRecurrence) {
  const size_t dk = 8, dv = 6, n = 3 * kDeltaBlock + 5;
  DeltaFixture f(dk, dv);
  std::vector<double> s(dk * dv);
  uint32_t seed = 1;
  const auto next = [&] {
    seed = seed * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f;
  };
  for (size_t t = 0; t < n; ++t) {
    std::vector<float> q(dk), k(dk), v(dv), out(dv);
    float length = 0;
    for (float& x : q) x = next();
    for (float& x : k) x = next(), length += x * x;
    for (float& x : k) x /= std::sqrt(length);
    for (float& x : v) x = next();
    const float beta = 0.5f + 0.4f * next(), g = -0.3f - 0.29f * next();
    delta_step_ref(f.head, t % kDeltaBlock, q.data(), k.data(), v.data(), beta, g, out.data());
    for (double& x : s) x *= std::exp(double{g});
    for (size_t j = 0; j < dv; ++j) {
      double m = 0, o = 0;
      for (size_t i = 0; i < dk; ++i) m += s[i * dv + j] * k[i];
      for (size_t i = 0; i < dk; ++i) s[i * dv + j] += k[i] * beta * (v[j] - m);
      for (size_t i = 0; i < dk; ++i) o += s[i * dv + j] * q[i];
      ASSERT_NEAR(out[j], o, 1e-5) << t;
    }
  }
}

}  // namespace
}  // namespace moeflux
