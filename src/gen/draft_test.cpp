#include "gen/draft.h"

#include <gtest/gtest.h>

namespace moeflux {
namespace {

TEST(NgramDraft, GoesOnAsTheTextDidTheLastTime) {
  const std::vector<Token> text{1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8, 9, 9, 1, 2};
  NgramDraft draft(text);
  EXPECT_EQ(draft.guess(3), (std::vector<Token>{3, 7, 8}));  // of two places the later one
  EXPECT_EQ(draft.guess(0), std::vector<Token>{});
  draft.add(3);
  draft.add(4);
  EXPECT_EQ(draft.guess(2), (std::vector<Token>{5, 9}));  // the longer beginning decides
  draft.add(100);
  EXPECT_TRUE(draft.guess(4).empty());
}

TEST(NgramDraft, OfAnEmptyOrShortTextNothing) {
  EXPECT_TRUE(NgramDraft({}).guess(4).empty());
  EXPECT_TRUE(NgramDraft(std::vector<Token>{5}).guess(4).empty());
  EXPECT_TRUE(NgramDraft(std::vector<Token>{5, 5}).guess(4).empty());
  EXPECT_EQ(NgramDraft(std::vector<Token>{5, 5, 5}).guess(4), std::vector<Token>{5});
}

TEST(DraftStats, SayWhereGuessesCameFrom) {
  EXPECT_EQ(describe({}), "");
  EXPECT_EQ(describe({.barred = true}),
            "nothing guessed: the state of this model cannot go back on this backend");
  EXPECT_EQ(describe({.steps = 3, .guessed = 9, .right = 4}), "4 of 9 guesses right");
  EXPECT_EQ(describe({.source = DraftSource::Mtp, .steps = 3, .guessed = 9, .right = 4}),
            "4 of 9 guesses of the multi-token-prediction layer right");
}

TEST(DraftGovernor, PausesWhileGuessingIsSlowerAndTriesAgain) {
  DraftGovernor governor;
  EXPECT_FALSE(governor.may_guess());  // not before it knows what a plain step takes
  for (int i = 0; i < 4; ++i) governor.step_done(0, 1, 1.0);
  size_t guessing = 0;
  for (int i = 0; i < 600; ++i) {
    if (governor.may_guess()) {
      ++guessing;
      governor.step_done(4, 1, 1.5);  // nothing right, and half as long again
    } else {
      governor.step_done(0, 1, 1.0);
    }
  }
  EXPECT_GE(governor.pauses(), 4u);
  EXPECT_LT(guessing, 80u);
  EXPECT_GT(guessing, 40u);

  DraftGovernor other;
  for (int i = 0; i < 4; ++i) other.step_done(0, 1, 1.0);
  guessing = 0;
  for (int i = 0; i < 600; ++i) {
    const bool guess = other.may_guess();
    guessing += guess;
    guess ? other.step_done(4, 2, 1.5) : other.step_done(0, 1, 1.0);
  }
  EXPECT_EQ(other.pauses(), 0u);
  EXPECT_GT(guessing, 500u);
}

TEST(DraftGovernor, SlowFirstStepsAreForgotten) {
  DraftGovernor governor;
  for (int i = 0; i < 4; ++i) governor.step_done(0, 1, 10.0);  // experts come from the drive
  for (int i = 0; i < 300; ++i)
    governor.may_guess() ? governor.step_done(2, 1, 1.5) : governor.step_done(0, 1, 1.0);
  EXPECT_GE(governor.pauses(), 2u);
}

}  // namespace
}  // namespace moeflux
