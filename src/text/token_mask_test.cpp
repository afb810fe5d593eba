#include "text/token_mask.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace moeflux {
namespace {

std::shared_ptr<const MaskVocabulary> vocabulary_of(std::vector<std::string> tokens) {
  const auto n = static_cast<uint32_t>(tokens.size());
  tokens.insert(tokens.end(), {"<special>", "<end>", "<other end>", ""});
  return std::make_shared<MaskVocabulary>(std::move(tokens), std::vector<uint32_t>{n},
                                          std::vector<uint32_t>{n + 1, n + 2});
}

// All single characters of an alphabet, and random words over it, some twice.
std::shared_ptr<const MaskVocabulary> random_vocabulary(std::mt19937& random, const std::string& alphabet,
                                                        size_t n_words) {
  std::vector<std::string> tokens;
  for (const char c : alphabet) tokens.emplace_back(1, c);
  for (size_t i = 0; i < n_words; ++i) {
    std::string word;
    for (size_t n = 1 + random() % 7; n > 0; --n) word += alphabet[random() % alphabet.size()];
    tokens.push_back(word);
  }
  return vocabulary_of(std::move(tokens));
}

std::vector<uint32_t> allowed(const std::vector<uint64_t>& mask) {
  std::vector<uint32_t> out;
  for (uint32_t t = 0; t < mask.size() * 64; ++t)
    if ((mask[t / 64] >> (t % 64)) & 1) out.push_back(t);
  return out;
}

std::vector<uint32_t> brute_force(const TokenMasker& masker, const GrammarState& state) {
  std::vector<uint32_t> out;
  for (uint32_t t = 0; t < masker.vocabulary().size(); ++t) {
    GrammarState next = state;
    if (masker.advance(next, t)) out.push_back(t);
  }
  return out;
}

// Walks at random and compares the mask with trying every token at each state.
void expect_exact_masks(const std::string& grammar, const std::string& alphabet, uint32_t seed,
                        size_t max_cache_bytes = size_t{1} << 20) {
  std::mt19937 random(seed);
  const auto vocabulary = random_vocabulary(random, alphabet, 150);
  TokenMasker masker(std::make_shared<Grammar>(Grammar::parse(grammar)), vocabulary, max_cache_bytes);
  std::vector<uint64_t> mask(vocabulary->n_words());
  for (int walk = 0; walk < 8; ++walk) {
    GrammarState state = masker.start();
    for (int step = 0; step < 40; ++step) {
      const bool any = masker.fill(state, mask);
      const std::vector<uint32_t> tokens = allowed(mask);
      ASSERT_EQ(tokens, brute_force(masker, state)) << grammar << " walk " << walk << " step " << step;
      ASSERT_EQ(any, !tokens.empty());
      if (!any) break;
      ASSERT_TRUE(masker.advance(state, tokens[random() % tokens.size()]));
    }
  }
}

TEST(TokenMask, EqualsTryingEveryToken) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"_(root ::= "abc" | "abd" [a-d]*)_", "abcd"},
      {R"_(root ::= "(" root ")" | "[" (root ("," root)*)? "]" | "x"+)_", "()[],x"},
      {R"_(root ::= a "," a "," a
          a ::= "(" a ")" | [xy]*)_",
       "(),xy"},
      {R"_(root ::= value
          value ::= "{" (key ":" value ("," key ":" value)*)? "}" | key | num
          key ::= "'" [^']* "'"
          num ::= "-"? [0-9]+)_",
       "{}:,'a1-"},
      {R"_(root ::= ("ab" | "b"){3,40} "c")_", "abc"},
      {R"_(root ::= ("a" "b"{0,30} ","){20,60} "c")_", "abc,"},
      {R"_(root ::= "a" root "b" root | "c")_", "abc"},
      {R"_(root ::= e
          e ::= t ("+" e)?
          t ::= "x" | "(" e ")" | "(" t ")" "!"?)_",
       "x()+!"},
      {"root ::= [\u00e0-\u00ff\u4e00-\u4eff]* \"!\"", "\xc3\xa0\xbf\xe4\xb8\x80!"},
      {R"_(root ::= list
          list ::= item | item ";" list
          item ::= "x" sep item | "y"
          sep ::= " "? | "," " "?)_",
       "xy; ,"},
  };
  uint32_t seed = 1;
  for (const auto& [grammar, alphabet] : cases)
    for (int i = 0; i < 3; ++i) expect_exact_masks(grammar, alphabet, seed++);
}

TEST(TokenMask, ACacheThatHoldsNothingChangesNothing) {
  expect_exact_masks(R"_(root ::= "(" root ")" | "[" (root ("," root)*)? "]" | "x"+)_", "()[],x", 5, 0);
}

TEST(TokenMask, IsExactAtTheLimitOfNesting) {
  const auto vocabulary =
      vocabulary_of({"[", "]", "[[", "[[[", "x", "]]", "[x", "[[x", "[]", "[x]", "[[x]]", "]]]]"});
  TokenMasker masker(std::make_shared<Grammar>(Grammar::parse(R"(root ::= "[" root "]" | "x")")), vocabulary);
  GrammarState state = masker.start();
  ASSERT_TRUE(masker.grammar().advance(state, std::string(kMaxGrammarDepth - 5, '[')));
  std::vector<uint64_t> mask(vocabulary->n_words());
  for (int step = 0; step < 12; ++step) {
    masker.fill(state, mask);
    ASSERT_EQ(allowed(mask), brute_force(masker, state)) << step;
    ASSERT_TRUE(masker.advance(state, allowed(mask).front())) << step;
  }
  EXPECT_GT(masker.stats().n_deep, 0u);
}

TEST(TokenMask, EndTokensOnlyWhereTheTextIsComplete) {
  const auto vocabulary = vocabulary_of({"a", "b", "ab"});
  TokenMasker masker(std::make_shared<Grammar>(Grammar::parse(R"(root ::= ("a" "b")+)")), vocabulary);
  std::vector<uint64_t> mask(1);
  GrammarState state = masker.start();
  ASSERT_TRUE(masker.fill(state, mask));
  EXPECT_EQ(allowed(mask), (std::vector<uint32_t>{0, 2}));
  EXPECT_FALSE(masker.advance(state, 4));
  EXPECT_FALSE(masker.advance(state, 3));
  EXPECT_FALSE(masker.advance(state, 6));
  EXPECT_FALSE(masker.advance(state, 1000));
  ASSERT_TRUE(masker.advance(state, 2));
  ASSERT_TRUE(masker.fill(state, mask));
  EXPECT_EQ(allowed(mask), (std::vector<uint32_t>{0, 2, 4, 5}));
  ASSERT_TRUE(masker.advance(state, 5));
  EXPECT_FALSE(masker.fill(state, mask));
  EXPECT_TRUE(state.final());
}

TEST(TokenMask, SpecialTokensOnlyWhereTheGrammarNamesThem) {
  enum : uint32_t { a, open, word, byte_ff, tag, longer, end };
  const auto vocabulary = std::make_shared<MaskVocabulary>(
      std::vector<std::string>{"a", "<", "<x>", "\xFF", "<x>", "<x>>", "<end>"},
      std::vector<uint32_t>{tag, longer}, std::vector<uint32_t>{end});
  using E = Expression;
  GrammarRules rules;  // the token, any text of a, <, x and >, the token
  const E text = E::repeat(E::one_of({{'a', 'a'}, {'<', '<'}, {'x', 'x'}, {'>', '>'}}), 0, kUnbounded);
  rules.root = rules.add("root", E::sequence({E::literal(special_token_bytes("<x>")), text,
                                              E::literal(special_token_bytes("<x>"))}));
  TokenMasker masker(std::make_shared<Grammar>(rules), vocabulary);
  std::vector<uint64_t> mask(1);
  GrammarState state = masker.start();
  const auto follows = [&] {
    masker.fill(state, mask);
    EXPECT_EQ(allowed(mask), brute_force(masker, state));
    return allowed(mask);
  };
  EXPECT_EQ(follows(), std::vector<uint32_t>{tag});
  ASSERT_TRUE(masker.advance(state, tag));
  EXPECT_EQ(follows(), (std::vector<uint32_t>{a, open, word, tag}));
  ASSERT_TRUE(masker.advance(state, word));
  ASSERT_TRUE(masker.advance(state, tag));
  EXPECT_EQ(follows(), std::vector<uint32_t>{end});

  TokenMasker spelled(std::make_shared<Grammar>(Grammar::parse(R"(root ::= "<x>" | .)")), vocabulary);
  spelled.fill(spelled.start(), mask);
  EXPECT_EQ(allowed(mask), (std::vector<uint32_t>{a, open, word}));
}

TEST(TokenMask, SaysWhereTheVocabularyLacksBytes) {
  const auto vocabulary = vocabulary_of({"a", "bc"});
  EXPECT_EQ(vocabulary->missing_bytes().size(), 254u);  // and 0xFF is no byte of a text
  TokenMasker masker(std::make_shared<Grammar>(Grammar::parse(R"(root ::= "ab")")), vocabulary);
  std::vector<uint64_t> mask(1);
  GrammarState state = masker.start();
  ASSERT_TRUE(masker.fill(state, mask));
  ASSERT_TRUE(masker.advance(state, 0));
  EXPECT_FALSE(masker.fill(state, mask));
  EXPECT_FALSE(state.accepting());
}

TEST(TokenMask, CacheIsBoundedAndUsed) {
  std::mt19937 random(3);
  const auto vocabulary = random_vocabulary(random, "ab,", 5000);
  TokenMasker masker(std::make_shared<Grammar>(Grammar::parse(R"(root ::= ([ab]{1,200} ","){1,200})")),
                     vocabulary, 20'000);
  std::vector<uint64_t> mask(vocabulary->n_words());
  GrammarState state = masker.start();
  for (int i = 0; i < 100; ++i) {
    masker.fill(state, mask);
    EXPECT_LT(masker.stats().cache_bytes, 40'000u);
    ASSERT_TRUE(masker.grammar().advance(state, "ab,"));
  }
  EXPECT_GT(masker.stats().n_hits, 90u);
}

TEST(TokenMask, RefusesSpecialTokensOutsideTheVocabulary) {
  EXPECT_THROW(MaskVocabulary({"a"}, std::vector<uint32_t>{1}, {}), Error);
}

}  // namespace
}  // namespace moeflux
