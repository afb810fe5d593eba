#include "text/pattern.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace moeflux {
namespace {

using Strings = std::vector<std::string>;

Strings matches(const std::string& expression, std::string_view text) {
  const Pattern pattern(expression, "test");
  Strings result;
  size_t from = 0;
  while (const auto match = pattern.find(text, from)) {
    result.emplace_back(text.substr(match->begin, match->end - match->begin));
    from = match->end;
  }
  return result;
}

std::string pattern_error(const std::string& expression) {
  try {
    const Pattern pattern(expression, "test");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Pattern, PublishedPatternCutsText) {
  const std::string qwen =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(matches(qwen, "It's  42 'sword, ok!?\n\n  x  "),
            (Strings{"It", "'s", " ", " ", "4", "2", " '", "sword", ",", " ok", "!?\n\n", " ", " x", "  "}));
  EXPECT_EQ(matches(qwen, " \n \n  日本語é\t\tz"), (Strings{" \n \n", " ", " 日本語é", "\t", "\tz"}));
}

TEST(Pattern, AlternativesGiveBackOnlyWhatTheyMust) {
  EXPECT_EQ(matches("[A-Z]*[a-zA]+|[A-Z]+", "ABCde FGA HI"), (Strings{"ABCde", "FGA", "HI"}));
  EXPECT_EQ(matches("a{2,3}b?", "aaaab ab aab"), (Strings{"aaa", "aab"}));
  EXPECT_EQ(matches("a+?b|a", "aab"), (Strings{"aab"}));
  EXPECT_EQ(matches("a++ab|c", "aaabc"), (Strings{"c"}));
  EXPECT_EQ(matches("x(?:ab|a)?b", "xab xabb xb"), (Strings{"xab", "xabb", "xb"}));
  EXPECT_EQ(matches("a(?=b)|a(?!c).", "ab ac ad"), (Strings{"a", "ad"}));
  EXPECT_EQ(matches(R"(\s+$)", "a \nb  "), (Strings{" ", "  "}));
}

TEST(Pattern, SetsAreSets) {
  EXPECT_EQ(matches(R"([a-c\-\]x-]+)", "ab-]x yz"), (Strings{"ab-]x"}));
  EXPECT_EQ(matches(R"([^\s\p{L}]+)", "ab 12!\u00A0é"), (Strings{"12!"}));
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", "abc漢字é"), (Strings{"abc", "é"}));
  EXPECT_EQ(matches(R"([(\s|[.,])]+)", "a( .,|)b"), (Strings{"( .,|)"}));
  EXPECT_EQ(matches(R"(\P{L}|\p{^L})", "a1"), (Strings{"1"}));
  EXPECT_EQ(matches(R"(\x{65E5}|\u672C|\x41|\d)", "日本A٣"), (Strings{"日", "本", "A", "٣"}));
  EXPECT_EQ(matches("(?i:'s|K)", "'S '\u017F \u212A k"), (Strings{"'S", "'\u017F", "\u212A", "k"}));
}

TEST(Pattern, WhatIsNotKnownIsRefusedByName) {
  for (const auto& [expression, part] :
       std::vector<std::pair<std::string, std::string>>{{R"(\w+)", R"('\w')"},
                                                        {R"((?<=a)b)", "(?"},
                                                        {R"((a)\1)", R"('\1')"},
                                                        {"(ab)+", "a group that is repeated"},
                                                        {"a**", "a repetition of a repetition"},
                                                        {"[[:alpha:]]", "POSIX"},
                                                        {R"(\p{Greek})", "Greek"},
                                                        {"(?i:\u00E9)", "ASCII"},
                                                        {"(?i:ss)", "ss"},
                                                        {"^a", "'^'"},
                                                        {"a*", "match nothing"},
                                                        {"a{5000}", "1000"}})
    EXPECT_NE(pattern_error(expression).find(part), std::string::npos)
        << expression << ": " << pattern_error(expression);
}

TEST(Pattern, WhatIsBrokenIsRefused) {
  for (const char* expression : {"(", ")", "[", "[a", "a{", "a{2", "a{3,2}", "[z-a]", "\\", "\\p{", "\\p{L",
                                 "+", "\\x{110000}", "\\uD800", "(?", "(?:a", "[a-", "[^"})
    EXPECT_NE(pattern_error(expression), "") << expression;
  EXPECT_NE(pattern_error(std::string(5000, '(')), "");
  EXPECT_NE(pattern_error(std::string(5000, '[')), "");
}

TEST(Pattern, EndlessWaysOfMatchingAreGivenUp) {
  const Pattern pattern("a*a*a*a*a*a*b", "test");
  EXPECT_THROW(pattern.find(std::string(2000, 'a'), 0), Error);
}

}  // namespace
}  // namespace moeflux
