#include "ops/shortlist.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace moeflux {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<uint64_t> keys_of(const std::vector<float>& logits, const ShortlistWish& wish) {
  Shortlist list;
  shortlist_ref(logits, wish, list);
  return {list.listed().begin(), list.listed().end()};
}

TEST(Shortlist, RanksByLogitAndThenById) {
  const std::vector<float> logits = {1, -0.0f, 3, -kInfinity, 0.0f, 3, -2};
  EXPECT_EQ(keys_of(logits, {.best = 5}),
            (std::vector{rank_key(3, 2), rank_key(3, 5), rank_key(1, 0), rank_key(0, 1), rank_key(0, 4)}));
  EXPECT_EQ(keys_of(logits, {.best = 100}).size(), 6u);  // -infinity is no choice
  for (const uint64_t key : keys_of(logits, {.best = 100})) EXPECT_EQ(logit_of(key), logits[token_of(key)]);
}

TEST(Shortlist, CountsTheWeightsOfAllTokens) {
  const std::vector<float> logits = {1, 3, -kInfinity, 2, -40};
  Shortlist list;
  shortlist_ref(logits, {.best = 1, .inverse_temperature = 0.5f}, list);
  EXPECT_EQ(list.n, 1u);
  EXPECT_EQ(list.total, kWeightOne + weight_of(-1.0f) + weight_of(-0.5f) + weight_of(-21.5f));
  shortlist_ref(logits, {.best = 1}, list);
  EXPECT_EQ(list.total, 0u);
}

TEST(Shortlist, IsEmptyWhereALogitIsDamagedOrNoTokenHasAChance) {
  EXPECT_TRUE(keys_of({1, NAN, 2}, {}).empty());
  EXPECT_TRUE(keys_of({1, kInfinity, 2}, {}).empty());
  EXPECT_TRUE(keys_of({-kInfinity, -kInfinity}, {}).empty());
}

}  // namespace
}  // namespace moeflux
