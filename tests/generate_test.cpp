// The generation loop on a small trained model: when it ends, what it hands out, and that the same seed gives
// the same tokens however they are computed.
#include "gen/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "gen/generation_config.h"
#include "support/engines.h"
#include "support/support.h"

namespace moeflux {
namespace {

const std::vector<Token> kPrompt = {1, 17, 400, 32, 5, 77};

EngineOptions small(size_t ctx = 64) {
  EngineOptions o;
  o.ctx = ctx;
  o.threads = 1;
  return o;
}

GenerateOptions sampled(size_t n) {
  GenerateOptions o;
  o.sampler.temperature = 0.9;
  o.sampler.top_p = 0.95;
  o.sampler.seed = 11;
  o.max_tokens = n;
  return o;
}

Generated run(Engine& engine, const GenerateOptions& options, const OnToken& on_token = {}) {
  return generate(engine, *engine.make_sequence(), kPrompt, options, on_token);
}

TEST(Generate, TemperatureZeroIsTheLargestLogitEachTime) {
  Engine engine(test::storyteller(), small());
  GenerateOptions o;
  o.sampler.temperature = 0;
  o.max_tokens = 12;
  const Generated got = run(engine, o);
  std::vector<Token> want, fed = kPrompt;
  const auto sequence = engine.make_sequence();
  while (want.size() < 12) {
    const auto logits = engine.eval(*sequence, fed);
    want.push_back(static_cast<Token>(std::ranges::max_element(logits) - logits.begin()));
    fed = {want.back()};
  }
  EXPECT_EQ(got.tokens, want);
  EXPECT_EQ(got.finish, FinishReason::Length);
  EXPECT_EQ(engine.generate_greedy(*engine.make_sequence(), kPrompt, 12), want);
}

TEST(Generate, TheSameSeedGivesTheSameTokensHoweverTheyAreComputed) {
  Engine engine(test::storyteller(), small());
  const Generated want = run(engine, sampled(24));
  ASSERT_EQ(want.tokens.size(), 24u);
  for (const std::string& isa : isa_names())
    for (const size_t threads : {1, 2})
      for (const uint64_t chunk : {512, 4}) {
        EngineOptions o = small();
        o.threads = threads;
        o.isa = isa;
        o.chunk = chunk;
        Engine other(test::storyteller(), o);
        EXPECT_EQ(run(other, sampled(24)).tokens, want.tokens) << isa << ", " << threads << " threads";
      }
  GenerateOptions other_seed = sampled(24);
  other_seed.sampler.seed = 12;
  EXPECT_NE(run(engine, other_seed).tokens, want.tokens);
}

// The plain backend keeps logits, as one on a GPU does.
TEST(Generate, TheChoiceIsTheSameWhereLogitsStayWithTheBackend) {
  for (const std::string& backend : test::with_gpu({"cpu-ref"})) {
    EngineOptions options = small();
    options.backend = backend;
    options.precision = Precision::Exact;  // looking at every stage changes no bit
    Engine engine(test::storyteller(), options);
    ASSERT_TRUE(engine.keeps_logits());
    std::vector<GenerateOptions> cases(5, sampled(10));
    cases[1].sampler.temperature = 0;
    cases[2].sampler.top_k = 20;
    cases[3].sampler = {.temperature = 4, .top_p = 0.99, .seed = 3};  // of so many that all logits are needed
    cases[4].sampler.penalties.repetition = 1.3;
    for (GenerateOptions& o : cases) {
      const std::vector<Token> got = run(engine, o).tokens;
      o.tap.call = [](const TapTensor&) { return false; };  // looks at everything
      EXPECT_EQ(got, run(engine, o).tokens) << backend;
    }
  }
}

TEST(Generate, APromptInTwoPartsGivesTheSameTokens) {
  Engine engine(test::storyteller(), small());
  GenerateOptions o = sampled(10);
  o.sampler.penalties.repetition = 1.3;
  const Generated want = run(engine, o);
  const auto sequence = engine.make_sequence();
  const std::span<const Token> prompt(kPrompt);
  engine.eval(*sequence, prompt.first(4));
  EXPECT_EQ(generate(engine, *sequence, prompt.subspan(4), o, {}, prompt.first(4)).tokens, want.tokens);
}

TEST(Generate, StopTokensEndItAndAreNotHandedOut) {
  Engine engine(test::storyteller(), small());
  const Generated all = run(engine, sampled(20));
  GenerateOptions o = sampled(20);
  o.stop_tokens = {all.tokens[7], 1u << 30};
  const auto first = static_cast<size_t>(std::ranges::find(all.tokens, all.tokens[7]) - all.tokens.begin());
  std::vector<Token> seen;
  const Generated got = run(engine, o, [&](const Sample& s) {
    seen.push_back(s.token);
    return Next::Continue;
  });
  EXPECT_EQ(got.finish, FinishReason::Stop);
  EXPECT_EQ(got.stop_token, all.tokens[7]);
  EXPECT_EQ(got.tokens,
            std::vector<Token>(all.tokens.begin(), all.tokens.begin() + static_cast<ptrdiff_t>(first)));
  EXPECT_EQ(seen, got.tokens);

  o.min_tokens = 20;
  EXPECT_EQ(run(engine, o).finish, FinishReason::Length);
  o.min_tokens = 0;
  o.ignore_stop_tokens = true;
  const Generated ignored = run(engine, o);
  EXPECT_EQ(ignored.tokens.size(), 20u);
  EXPECT_EQ(std::ranges::count(ignored.tokens, all.tokens[7]), 0);
}

TEST(Generate, CallbacksEndIt) {
  Engine engine(test::storyteller(), small());
  for (const Next next : {Next::Stop, Next::Cancel}) {
    size_t count = 0;
    const Generated got =
        run(engine, sampled(20), [&](const Sample&) { return ++count == 3 ? next : Next::Continue; });
    EXPECT_EQ(got.tokens.size(), 3u);
    EXPECT_EQ(got.finish, next == Next::Stop ? FinishReason::Stop : FinishReason::Cancelled);
    EXPECT_FALSE(got.stop_token);
  }
}

TEST(Generate, APromptCanBeCancelledBetweenChunks) {
  EngineOptions chunked = small();
  chunked.chunk = 2;
  Engine engine(test::storyteller(), chunked);
  std::vector<size_t> seen;
  GenerateOptions o = sampled(5);
  o.on_prompt = [&](size_t done) {
    seen.push_back(done);
    return true;
  };
  EXPECT_EQ(run(engine, o).tokens.size(), 5u);
  EXPECT_EQ(seen, (std::vector<size_t>{2, 4, 6}));
  o.on_prompt = [&](size_t done) { return done < 4; };
  const auto sequence = engine.make_sequence();
  const Generated got = generate(engine, *sequence, kPrompt, o);
  EXPECT_EQ(got.finish, FinishReason::Cancelled);
  EXPECT_TRUE(got.tokens.empty());
  EXPECT_EQ(sequence->position(), 4u);
}

TEST(Generate, AFullContextEndsIt) {
  Engine engine(test::storyteller(), small(16));
  const auto sequence = engine.make_sequence();
  GenerateOptions o = sampled(1000);
  const Generated got = generate(engine, *sequence, kPrompt, o);
  EXPECT_EQ(got.finish, FinishReason::Length);
  EXPECT_EQ(sequence->position(), sequence->capacity());
  EXPECT_EQ(got.tokens.size(), sequence->capacity() - kPrompt.size() + 1);
  EXPECT_THROW(generate(engine, *sequence, kPrompt, o), Error);
  EXPECT_THROW(engine.generate_greedy(*engine.make_sequence(), kPrompt, 1000), Error);
}

TEST(Generate, MasksAreAskedForEveryToken) {
  Engine engine(test::storyteller(), small());
  std::vector<uint64_t> mask(engine.config().n_vocab / 64 + 1);
  Token turn = 100;
  GenerateOptions o = sampled(6);
  o.mask = [&]() -> std::span<const uint64_t> {
    std::ranges::fill(mask, 0);
    mask[turn / 64] |= uint64_t{1} << turn % 64;
    turn += 50;
    return mask;
  };
  EXPECT_EQ(run(engine, o).tokens, (std::vector<Token>{100, 150, 200, 250, 300, 350}));
}

TEST(Generate, LogprobsComeWithEveryToken) {
  Engine engine(test::storyteller(), small());
  GenerateOptions o = sampled(8);
  o.sampler.logprobs = 5;
  run(engine, o, [&](const Sample& s) {
    EXPECT_TRUE(s.logprobs && s.logprobs->top.size() == 5);
    EXPECT_LE(s.logprobs->chosen, s.logprobs->top[0].logprob);
    for (const TokenChance& t : s.logprobs->top)
      EXPECT_TRUE(t.token != s.token || t.logprob == s.logprobs->chosen);
    return Next::Continue;
  });
}

TEST(Generate, NothingAskedForIsNothingComputed) {
  Engine engine(test::storyteller(), small());
  const auto sequence = engine.make_sequence();
  EXPECT_TRUE(generate(engine, *sequence, kPrompt, sampled(0)).tokens.empty());
  EXPECT_EQ(sequence->position(), 0u);
}

TEST(Generate, BadInputIsRefused) {
  Engine engine(test::storyteller(), small());
  const auto sequence = engine.make_sequence();
  EXPECT_THROW(generate(engine, *sequence, {}, sampled(3)), Error);
  EXPECT_THROW(generate(engine, *sequence, std::vector<Token>{1u << 30}, sampled(3)), Error);
  GenerateOptions o = sampled(3);
  o.sampler.top_p = 7;
  EXPECT_THROW(generate(engine, *sequence, kPrompt, o), Error);
  EXPECT_EQ(sequence->position(), 0u);
}

TEST(Generate, ThePackageKnowsItsDefaults) {
  Engine engine(test::storyteller(), small());
  const GenerationConfig file = read_generation_config(engine.package().folder());
  EXPECT_EQ(default_sampling(file).temperature, 0.7);
  EXPECT_EQ(default_sampling(file).top_k, 20u);
  EXPECT_EQ(stop_tokens(file, engine.package().config(), engine.package().config_path()),
            (std::vector<Token>{4095, 4093}));
}

}  // namespace
}  // namespace moeflux
