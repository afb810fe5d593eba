// Guessing ahead changes the speed of a text, never the text.
#include <gtest/gtest.h>

#include "gen/generate.h"
#include "support/support.h"

namespace moeflux {
namespace {

class Draft : public testing::TestWithParam<std::string> {};

TEST_P(Draft, TheTextIsTheOneWithoutGuesses) {
  const fs::path& package = test::golden_package(GetParam());
  EngineOptions o;
  o.precision = Precision::Exact;
  o.ctx = 256;
  Engine engine(package, o);
  std::vector<Token> prompt;
  for (size_t i = 0; i < 40; ++i) prompt.push_back(static_cast<Token>(10 + i % 8));
  uint64_t guessed = 0, right = 0;
  for (const float temperature : {0.0f, 0.7f})
    for (const size_t draft : {1, 5, 12}) {
      GenerateOptions options;
      options.sampler.temperature = temperature;
      options.sampler.seed = 3;
      options.sampler.penalties.repetition = 0.5;  // a text that repeats itself
      options.max_tokens = 170;
      const auto plain = engine.make_sequence(), guessing = engine.make_sequence();
      const Generated want = generate(engine, *plain, prompt, options);
      options.draft = draft;
      const Generated got = generate(engine, *guessing, prompt, options);
      ASSERT_EQ(got.tokens, want.tokens) << "draft of " << draft << " at temperature " << temperature;
      EXPECT_EQ(guessing->position(), plain->position());
      EXPECT_EQ(want.drafts.guessed, 0u);
      guessed += got.drafts.guessed;
      right += got.drafts.right;
    }
  EXPECT_GT(right, 0u);
  EXPECT_GE(guessed, right);
}

// A state that cannot go back is not given guesses.
TEST_P(Draft, TheReferenceGivesTheTextWithoutGuessesToo) {
  EngineOptions o;
  o.backend = "cpu-ref";
  o.precision = Precision::Exact;
  o.ctx = 128;
  Engine engine(test::golden_package(GetParam()), o);
  std::vector<Token> prompt;
  for (size_t i = 0; i < 24; ++i) prompt.push_back(static_cast<Token>(10 + i % 6));
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.sampler.penalties.repetition = 0.5;
  options.max_tokens = 80;
  const auto plain = engine.make_sequence(), guessing = engine.make_sequence();
  const Generated want = generate(engine, *plain, prompt, options);
  options.draft = 8;
  const Generated got = generate(engine, *guessing, prompt, options);
  EXPECT_EQ(got.tokens, want.tokens);
  if (engine.config().has(Mixer::DeltaNet)) {
    EXPECT_EQ(got.drafts.guessed, 0u);
  } else {
    EXPECT_GT(got.drafts.guessed, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Draft,
                         testing::Values("qwen3_moe", "deepseek_v3", "qwen3_next", "gpt_oss", "mixtral"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace moeflux
