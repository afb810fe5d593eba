#include "gen/penalties.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gen/philox.h"

namespace moeflux {
namespace {

constexpr size_t kVocab = 70;

std::vector<float> some_logits() {
  std::vector<float> x(kVocab);
  for (size_t i = 0; i < kVocab; ++i) x[i] = static_cast<float>(i) * 0.25f - 6;
  return x;
}

std::vector<float> applied(Penalties& penalties) {
  const std::vector<float> logits = some_logits();
  LogitBlocks blocks(kVocab, *runnable_ops().front());
  blocks.load(logits, 0);
  penalties.apply(blocks);
  blocks.refresh();
  std::vector<float> out(kVocab);
  for (Token t = 0; t < kVocab; ++t) out[t] = blocks[t];
  return out;
}

// A text over few tokens, so that they repeat.
std::vector<Token> some_text(size_t n, uint32_t seed, uint32_t tokens) {
  std::vector<Token> text(n);
  for (size_t i = 0; i < n; ++i) text[i] = philox({static_cast<uint32_t>(i), seed, 0, 0}, {1, 1})[0] % tokens;
  return text;
}

TEST(Penalties, OffChangesNothing) {
  Penalties off({}, kVocab);
  off.read(some_text(50, 1, 9));
  off.accept(3);
  EXPECT_EQ(applied(off), some_logits());
}

TEST(Penalties, CountWhatIsInTheWindow) {
  for (const size_t window : {size_t{0}, size_t{1}, size_t{7}, size_t{40}, kWholeText}) {
    const PenaltyOptions o{.repetition = 1.3, .frequency = 0.4, .presence = 0.7, .window = window};
    Penalties penalties(o, kVocab);
    const auto prompt = some_text(30, 2, 20), answer = some_text(25, 3, 20);
    penalties.read(prompt);
    for (const Token t : answer) penalties.accept(t);

    std::vector<float> want = some_logits();
    std::vector<int> all(kVocab), generated(kVocab);
    for (size_t back = 0; back < std::min<size_t>(window, 55); ++back) {
      const bool own = back < answer.size();
      const Token t = own ? answer[answer.size() - 1 - back] : prompt[54 - back];
      ++all[t];
      generated[t] += own;
    }
    for (size_t t = 0; t < kVocab; ++t) {
      if (all[t]) want[t] = want[t] > 0 ? want[t] / 1.3f : want[t] * 1.3f;
      if (generated[t]) want[t] -= static_cast<float>(generated[t]) * 0.4f + 0.7f;
    }
    const auto got = applied(penalties);
    for (size_t t = 0; t < kVocab; ++t)
      EXPECT_NEAR(got[t], want[t], 1e-5) << "token " << t << ", window " << window;
  }
}

// Every earlier place, every length, straight from the definition.
std::vector<float> plain_dry(const std::vector<Token>& text, const DryOptions& o) {
  std::vector<float> logits = some_logits();
  std::vector<size_t> longest(kVocab);
  const std::vector<Token> seen(text.end() - static_cast<ptrdiff_t>(std::min(o.window, text.size())),
                                text.end());
  const auto breaks = [&](Token t) { return std::ranges::find(o.breakers, t) != o.breakers.end(); };
  for (size_t next = 1; next < seen.size(); ++next) {
    size_t length = 0;
    while (length < next && seen[next - 1 - length] == seen[seen.size() - 1 - length] &&
           !breaks(seen[seen.size() - 1 - length]))
      ++length;
    longest[seen[next]] = std::max(longest[seen[next]], length);
  }
  for (Token t = 0; t < kVocab; ++t)
    if (longest[t] >= std::max<size_t>(o.allowed_length, 1) && !breaks(t))
      logits[t] -=
          static_cast<float>(o.multiplier * std::pow(o.base, static_cast<double>(longest[t]) -
                                                                 static_cast<double>(o.allowed_length)));
  return logits;
}

TEST(Penalties, DryFindsTheLongestRepetitions) {
  size_t changed = 0;
  for (const uint32_t tokens : {1, 2, 3, 6})
    for (uint32_t seed = 0; seed < 10; ++seed)
      for (const size_t window : {size_t{5}, size_t{20}, kWholeText})
        for (const size_t allowed : {0, 1, 2, 4}) {
          const DryOptions o{.multiplier = 0.8,
                             .base = 1.1,
                             .allowed_length = allowed,
                             .window = window,
                             .breakers = {5, 2}};
          const auto text = some_text(seed * 5, seed, tokens);
          Penalties penalties({.dry = o}, kVocab);
          penalties.read(text);
          const auto got = applied(penalties), want = plain_dry(text, o);
          for (size_t t = 0; t < kVocab; ++t)
            ASSERT_NEAR(got[t], want[t], 1e-4 * std::fabs(want[t])) << "token " << t << ", seed " << seed;
          changed += got != some_logits();
          EXPECT_EQ(applied(penalties), got);  // asking changes nothing
        }
  EXPECT_GT(changed, 100u);
}

TEST(Penalties, DryOfALongRepetitionStaysFinite) {
  Penalties penalties({.dry = {.multiplier = 1, .base = 2}}, kVocab);
  penalties.read(std::vector<Token>(5000, 7));
  const auto got = applied(penalties);
  EXPECT_LT(got[7], -1e29f);
  EXPECT_TRUE(std::isfinite(got[7]));
}

TEST(Penalties, BoostsAreLimitedToWhatAFloatHolds) {
  Penalties penalties({.repetition = 0.01}, kVocab);
  penalties.read(std::vector<Token>{0});
  std::vector<float> logits(kVocab, std::numeric_limits<float>::max());
  LogitBlocks blocks(kVocab, *runnable_ops().front());
  blocks.load(logits, 0);
  penalties.apply(blocks);
  EXPECT_EQ(blocks[0], std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace moeflux
