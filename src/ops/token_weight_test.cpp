#include "ops/token_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/ops.h"
#include "ops/test_matrix.h"

namespace moeflux {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(TokenWeight, IsTheExponentialInWholeUnits) {
  EXPECT_EQ(weight_of(0), kWeightOne);
  EXPECT_EQ(weight_of(-0.0f), kWeightOne);
  EXPECT_EQ(weight_of(kLeastExponent), 1u);
  EXPECT_EQ(weight_of(std::nextafter(kLeastExponent, -kInfinity)), 0u);
  EXPECT_EQ(weight_of(-kInfinity), 0u);
  for (float y = 0; y > -28; y -= 0.00137f) {
    const double want = std::exp(double{y}) * 0x1p40;
    ASSERT_NEAR(static_cast<double>(weight_of(y)), want, 2.5e-7 * want + 0.51) << y;
  }
}

std::vector<float> logits(size_t n, uint32_t seed) {
  std::vector<float> x(n);
  for (float& v : x) v = noise(seed) * 40;
  return x;
}

class EveryTable : public testing::TestWithParam<const Ops*> {};
INSTANTIATE_TEST_SUITE_P(Isa, EveryTable, testing::ValuesIn(runnable_ops().begin(), runnable_ops().end()),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(EveryTable, WeightsAreThoseOfThePlainVersion) {
  const Ops& ops = *GetParam();
  for (const size_t n : {1, 15, 16, 17, 64, 1000}) {
    std::vector<float> x = logits(n, 5);
    x[n / 2] = -kInfinity;
    x[0] = 40;
    for (const float inverse : {1.0f, 0.37f, 1.0f / 0.7f, 1e30f}) {
      const Weighing w{40, inverse};
      std::vector<uint64_t> want(n), got(n, 7);
      for (size_t i = 0; i < n; ++i) want[i] = weight_of(exponent_of(w, x[i]));
      ops.token_weights(x.data(), n, w, got.data());
      EXPECT_EQ(got, want) << n << " at " << inverse;
    }
  }
}

TEST_P(EveryTable, BlocksHaveTheirLargestAndTheirSum) {
  const Ops& ops = *GetParam();
  constexpr size_t kBlocks = 9;
  std::vector<float> x = logits(kBlocks * kLogitBlock, 3), maxima(kBlocks);
  for (size_t i = 0; i < kLogitBlock; ++i) x[4 * kLogitBlock + i] -= 100;  // a block that weighs nothing
  EXPECT_TRUE(ops.block_maxima(x.data(), kBlocks, maxima.data()));
  const Weighing w{40, 1.25f};
  std::vector<uint64_t> sums(kBlocks);
  ops.block_weights(x.data(), maxima.data(), kBlocks, w, sums.data());
  for (size_t b = 0; b < kBlocks; ++b) {
    const float* block = &x[b * kLogitBlock];
    uint64_t sum = 0;
    for (size_t i = 0; i < kLogitBlock; ++i) sum += weight_of(exponent_of(w, block[i]));
    EXPECT_EQ(maxima[b], *std::max_element(block, block + kLogitBlock));
    EXPECT_EQ(sums[b], sum);
  }
}

TEST_P(EveryTable, BlocksThatAreNotFiniteAreNoticed) {
  const Ops& ops = *GetParam();
  for (const float bad : {NAN, kInfinity, -kInfinity})
    for (const size_t at : {0, 17, 63, 64, 191}) {
      std::vector<float> x(3 * kLogitBlock, 1), maxima(3);
      x[at] = bad;
      EXPECT_FALSE(ops.block_maxima(x.data(), 3, maxima.data())) << bad << " at " << at;
      EXPECT_TRUE(bad != -kInfinity || maxima == std::vector<float>(3, 1.0f));
    }
}

}  // namespace
}  // namespace moeflux
