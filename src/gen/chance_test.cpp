#include "gen/chance.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gen/philox.h"

namespace moeflux {
namespace {

TEST(Philox, GivesThePublishedWords) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, APositionHasAllOfItsSeedAndCounter) {
  EXPECT_EQ(draw_at(0, 0).token, 0xe169c58d6627e8d5u);
  EXPECT_EQ(draw_at(0, 0).xtc, 0xbc57ac4cu);
  EXPECT_NE(draw_at(1, 0).token, draw_at(0, 0).token);
  EXPECT_NE(draw_at(uint64_t{1} << 32, 0).token, draw_at(0, 0).token);
  EXPECT_NE(draw_at(0, uint64_t{1} << 32).token, draw_at(0, 0).token);
}

TEST(Chance, SharesAreRoundedUpAndExactAtTheEnds) {
  const uint64_t most = kMostTokens * kWeightOne;
  for (const uint64_t sum : {uint64_t{1}, kWeightOne, kWeightOne + 7, most}) {
    EXPECT_EQ(share_of(sum, to_fraction(0)), 0u);
    EXPECT_EQ(share_of(sum, to_fraction(1)), sum);
    EXPECT_EQ(share_of(sum, to_fraction(0.5)), (sum + 1) / 2);
  }
  EXPECT_EQ(share_of(3, 1), 1u);
}

TEST(Chance, RandomNumbersStayBelowTheSum) {
  EXPECT_EQ(random_below(0, 5), 0u);
  EXPECT_EQ(random_below(~uint64_t{0}, 5), 4u);
  EXPECT_EQ(random_below(~uint64_t{0}, uint64_t{1} << 62), (uint64_t{1} << 62) - 1);
  EXPECT_EQ(random_below(uint64_t{1} << 63, 1000), 500u);
}

TEST(Chance, LogarithmAgreesWithTheLibrary) {
  EXPECT_EQ(natural_log(1), 0);
  for (double x = 1e-300; x < 1e300; x *= 1.0371) {
    const double want = std::log(x);
    ASSERT_NEAR(natural_log(x), want, 1e-15 * std::fabs(want) + 2e-16) << x;
  }
}

}  // namespace
}  // namespace moeflux
