#include "store/predictor.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace moeflux {
namespace {

using Ids = std::vector<uint32_t>;

Ids guess(ExpertPredictor& p, uint32_t layer, size_t most = 99) {
  const auto ids = p.guess(layer, most);
  return {ids.begin(), ids.end()};
}

TEST(ExpertPredictor, GuessesWhatALayerChoseLast) {
  ExpertPredictor p(3, 16);
  EXPECT_EQ(guess(p, 0), Ids{});
  p.chosen(0, Ids{5, 1, 9});
  p.chosen(1, Ids{2, 3, 4});
  EXPECT_EQ(guess(p, 0), (Ids{5, 1, 9}));
  EXPECT_EQ(guess(p, 0, 2), (Ids{5, 1}));
  EXPECT_EQ(guess(p, 1), (Ids{2, 3, 4}));
  EXPECT_EQ(guess(p, 2), Ids{});
  p.chosen(0, Ids{1, 7, 1, 9, 7, 1});  // two tokens
  EXPECT_EQ(guess(p, 0), (Ids{1, 7, 9}));
  p.forget();
  EXPECT_EQ(guess(p, 0), Ids{});
}

TEST(ExpertPredictor, WhatARouterForeseesGoesAheadAndHoldsForOneChoice) {
  ExpertPredictor p(2, 16);
  p.chosen(1, Ids{1, 2, 3});
  p.foresee(1, Ids{8, 2});
  EXPECT_EQ(guess(p, 1), (Ids{8, 2, 1, 3}));
  EXPECT_EQ(guess(p, 1, 3), (Ids{8, 2, 1}));
  p.foresee(1, Ids{9});  // a nearer layer knows better
  EXPECT_EQ(guess(p, 1), (Ids{9, 1, 2, 3}));
  p.chosen(1, Ids{9, 4, 5});
  EXPECT_EQ(guess(p, 1), (Ids{9, 4, 5}));
}

TEST(ExpertPredictor, CountsHowOftenEachSourceIsRight) {
  ExpertPredictor p(1, 8);
  p.chosen(0, Ids{0, 1});
  EXPECT_EQ(p.repeated().guessed, 0u);
  p.foresee(0, Ids{2, 3, 4});
  p.chosen(0, Ids{1, 2});
  EXPECT_EQ(p.foreseen().guessed, 3u);
  EXPECT_EQ(p.foreseen().right, 1u);
  EXPECT_EQ(p.repeated().guessed, 2u);
  EXPECT_EQ(p.repeated().right, 1u);
  EXPECT_DOUBLE_EQ(p.repeated().share_right(), 0.5);
  p.chosen(0, Ids{1, 2});
  EXPECT_EQ(p.foreseen().guessed, 3u);
  EXPECT_EQ(p.repeated().right, 3u);
}

// Feeds tokens that take `seconds(token, on)` and says how many of the tokens outside trials were on, and how
// often the decision changed.
struct Outcome {
  uint32_t n_on = 0, n_off = 0, n_changes = 0;
};
Outcome feed(PrefetchGovernor& g, uint32_t n_tokens, const std::function<double(uint32_t, bool)>& seconds) {
  Outcome out;
  bool before = false;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    const bool on = g.on();
    if (!g.in_trial()) {
      ++(on ? out.n_on : out.n_off);
      out.n_changes += on != before;
      before = on;
    }
    g.token_done(seconds(t, on));
  }
  return out;
}

double noise(std::mt19937& random, double spread) {  // around 1
  const double sum = static_cast<double>(random() + random() + random() + random()) *
                     0x1p-32;  // 0..4, standard deviation 0.577
  return 1 + spread * (sum - 2) / 0.577;
}

TEST(PrefetchGovernor, KeepsWhatIsFaster) {
  PrefetchGovernor gains;
  const Outcome faster = feed(gains, 20000, [](uint32_t, bool on) { return on ? 0.09 : 0.10; });
  EXPECT_EQ(faster.n_off, 16u);  // the warm-up
  EXPECT_EQ(faster.n_changes, 1u);
  EXPECT_NEAR(gains.last_gain(), 0.1, 1e-9);
  PrefetchGovernor loses;
  const Outcome slower = feed(loses, 20000, [](uint32_t, bool on) { return on ? 0.11 : 0.10; });
  EXPECT_EQ(slower.n_on, 0u);
  EXPECT_LT(loses.last_gain(), 0);
}

TEST(PrefetchGovernor, MostTokensAreOutsideTrials) {
  PrefetchGovernor g;
  const Outcome o = feed(g, 60000, [](uint32_t, bool) { return 1.0; });
  EXPECT_GT(o.n_on + o.n_off, 60000 * 8 / 10);
}

TEST(PrefetchGovernor, TiesAndSmallGainsAreOff) {
  for (const double with : {1.0, 0.999, 0.985}) {
    PrefetchGovernor g;
    EXPECT_EQ(feed(g, 20000, [&](uint32_t, bool on) { return on ? with : 1.0; }).n_on, 0u) << with;
  }
}

TEST(PrefetchGovernor, FindsAGainUnderNoiseAndOutliers) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    PrefetchGovernor g;
    const Outcome o = feed(g, 20000, [&](uint32_t, bool on) {
      const double hiccup = random() % 20 == 0 ? 5 : 1;  // one token in twenty takes five times as long
      return (on ? 0.88 : 1.0) * noise(random, 0.05) * hiccup;
    });
    EXPECT_GT(o.n_on, 15 * o.n_off) << seed;
    EXPECT_LE(o.n_changes, 3u) << seed;
  }
}

TEST(PrefetchGovernor, NoiseAloneHardlyEverTurnsItOn) {
  uint32_t on = 0, off = 0;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    PrefetchGovernor g;
    const Outcome o = feed(g, 20000, [&](uint32_t, bool) { return noise(random, 0.05); });
    on += o.n_on;
    off += o.n_off;
    EXPECT_LE(o.n_changes, 12u) << seed;  // in 33 trials
  }
  EXPECT_LT(on, off / 5);
}

TEST(PrefetchGovernor, AGrowingContextIsNoGain) {
  PrefetchGovernor g;
  EXPECT_EQ(feed(g, 20000, [](uint32_t t, bool) { return 1 + 1e-3 * t; }).n_on, 0u);
}

TEST(PrefetchGovernor, FollowsAChangeAtTheNextTrial) {
  PrefetchGovernor g;
  const auto seconds = [](uint32_t t, bool on) { return on ? (t < 5000 ? 0.8 : 1.2) : 1.0; };
  const Outcome o = feed(g, 10000, seconds);
  EXPECT_EQ(o.n_changes, 2u);
  EXPECT_FALSE(g.on() && !g.in_trial());
}

TEST(PrefetchGovernor, ClocksThatStandStillAreIgnored) {
  PrefetchGovernor g;
  feed(g, 1000, [](uint32_t t, bool on) { return t % 2 ? 0.0 : on ? 0.8 : 1.0; });
  EXPECT_NEAR(g.last_gain(), 0.2, 1e-9);
}

}  // namespace
}  // namespace moeflux
