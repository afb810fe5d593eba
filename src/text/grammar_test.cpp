#include "text/grammar.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/grammar_utf8.h"

namespace moeflux {
namespace {

void expect_matches(const std::string& grammar, const std::vector<std::string>& yes,
                    const std::vector<std::string>& no) {
  const Grammar g = Grammar::parse(grammar);
  for (const std::string& text : yes) EXPECT_TRUE(g.matches(text)) << grammar << "\n: " << text;
  for (const std::string& text : no) EXPECT_FALSE(g.matches(text)) << grammar << "\n: " << text;
}

void expect_refused(const std::string& grammar, const std::string& part_of_message) {
  try {
    Grammar::parse(grammar);
    ADD_FAILURE() << "was accepted: " << grammar;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(part_of_message), std::string::npos) << e.what();
  }
}

TEST(Grammar, LiteralsAndEscapes) {
  expect_matches(R"(root ::= "ab" "c")", {"abc"}, {"", "ab", "abcd", "abC"});
  expect_matches(R"(root ::= "\n\t\r\\\"\x41\u00e9\U0001F600")", {"\n\t\r\\\"A\u00e9\U0001F600"}, {"n"});
  expect_matches("root ::= \"\u00e9\"", {"\u00e9"}, {"\xc3", "e"});
  expect_matches(R"(root ::= "" | "a")", {"", "a"}, {"b"});
}

TEST(Grammar, Classes) {
  expect_matches("root ::= [a-c_]", {"a", "b", "c", "_"}, {"d", "", "ab"});
  expect_matches("root ::= [^a-c]", {"d", "\u00e9", "\U0001F600", "\n"}, {"a", "b", "\xff", "\xed\xa0\x80"});
  expect_matches("root ::= [\u03b1-\u03c9]", {"\u03b1", "\u03bb", "\u03c9"}, {"\u03b0", "\u03ca", "a"});
  expect_matches(R"(root ::= [\]\-\\x])", {"]", "-", "\\", "x"}, {"["});
  expect_matches("root ::= [a-]", {"a", "-"}, {"b"});
  expect_matches("root ::= .", {"a", "\n", "\u20ac"}, {"", "aa", "\x80", "\xc0\x80", "\xf4\x90\x80\x80"});
  expect_matches(R"(root ::= [\U00010000-\U0010FFFF])", {"\U00010000", "\U0010ffff"}, {"\uffff"});
}

TEST(Grammar, GroupsChoicesAndRepetition) {
  expect_matches(R"(root ::= ("a" | "b" "c")* "d"?)", {"", "a", "bc", "abcd", "d"}, {"b", "dd", "ac"});
  expect_matches(R"(root ::= "a"+)", {"a", "aaaa"}, {"", "b"});
  expect_matches(R"(root ::= "a"{2})", {"aa"}, {"a", "aaa"});
  expect_matches(R"(root ::= "a"{2,})", {"aa", "aaaaa"}, {"a"});
  expect_matches(R"(root ::= "a"{,2})", {"", "a", "aa"}, {"aaa"});
  expect_matches(R"(root ::= [ab]{2,4} "b")", {"abb", "ababb"}, {"ab", "abababb"});
  expect_matches(R"(root ::= ("a"? "b"?)* "c")", {"c", "abbac"}, {"", "ab"});
  expect_matches(R"(root ::= "x" | "yes" | "yesterday" | "no" | "nothing" | "yes")",
                 {"x", "yes", "yesterday", "no"}, {"y", "yeste", "noth", ""});
}

TEST(Grammar, RepetitionsLongEnoughToShareTheirMasks) {
  const Grammar g = Grammar::parse(R"(root ::= ("a" [bc]){20,300} ("x"{2,40} "y"){0,50})");
  std::string text;
  for (int i = 0; i < 20; ++i) text += i % 2 ? "ab" : "ac";
  EXPECT_TRUE(g.matches(text));
  EXPECT_FALSE(g.matches(text.substr(2)));
  for (int i = 0; i < 50; ++i) text += "xxxy";
  EXPECT_TRUE(g.matches(text));
  EXPECT_FALSE(g.matches(text + "xxy"));
}

TEST(Grammar, RulesAndComments) {
  expect_matches(
      "# a list\nroot ::= item (\",\" item)* # of items\n\nitem ::= [0-9]+ |\n  \"(\" root \")\"\n",
      {"1", "1,22", "(1,(2)),3"}, {"", "1,", "(1", "()"});
  expect_matches("root ::= a\n  | b\na ::= \"a\"\nb ::= \"b\"", {"a", "b"}, {"ab"});
  expect_matches("root ::= x_1 x-2 x_1::=\"a\"x-2::=\"b\"", {"ab"}, {"a"});
}

TEST(Grammar, RecursionNeedsNoStackAtTheEndOfARule) {
  const Grammar g = Grammar::parse(R"(root ::= "a" root | "b")");
  EXPECT_TRUE(g.matches(std::string(20'000, 'a') + "b"));
}

TEST(Grammar, DepthIsBoundedAndCanAlwaysBeLeft) {
  const Grammar g = Grammar::parse(R"_(root ::= "[" root "]" | "(" pair ")"
                                      pair ::= "<" root ">" | "x")_");
  GrammarState state = g.start();
  size_t depth = 0;
  while (g.advance(state, "[")) ++depth;
  EXPECT_GT(depth, 900u);
  EXPECT_LE(depth, kMaxGrammarDepth);
  EXPECT_TRUE(g.advance(state, "(x)" + std::string(depth, ']')));
  EXPECT_TRUE(state.accepting());
  EXPECT_TRUE(state.final());
}

TEST(Grammar, StatesAreValues) {
  const Grammar g = Grammar::parse(R"_(root ::= "(" root? ")" root?)_");
  GrammarState state = g.start();
  ASSERT_TRUE(g.advance(state, "(()"));
  const GrammarState kept = state;
  EXPECT_FALSE(g.advance(state, "))"));
  EXPECT_EQ(state, kept);
  EXPECT_TRUE(g.advance(state, ")"));
  EXPECT_TRUE(state.accepting());
  GrammarState other = kept;
  EXPECT_TRUE(g.advance(other, "(()))()"));
  EXPECT_TRUE(other.accepting());
  EXPECT_FALSE(kept.accepting());
}

TEST(Grammar, AmbiguityDoesNotHurt) {
  expect_matches(R"(root ::= a a a
                    a ::= "x" | "x" a | b
                    b ::= "x" "x" b? )",
                 {"xxx", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}, {"x", "xx"});
}

TEST(Grammar, MistakesAreNamedWithTheirPlace) {
  expect_refused("root ::= \"a", "line 1, column 10: the literal is not closed");
  expect_refused("root ::= a\na ::= (\"b\"", "line 2, column 7: the group is not closed");
  expect_refused("root ::= [a", "column 10: the class is not closed");
  expect_refused("root ::= [z-a]", "column 11: the range ends before it begins");
  expect_refused("root ::= []", "the class holds no character");
  expect_refused("root ::= \"\\q\"", "column 11: unknown escape");
  expect_refused("root ::= \"\\ud800\"", "not a code point");
  expect_refused("root ::= \"\\x4\"", "2 hexadecimal digits");
  expect_refused("root ::= \"\xff\"", "not valid UTF-8");
  expect_refused("root ::= \"a\" missing", "line 1, column 14: the rule 'missing' is not defined");
  expect_refused("start ::= \"a\"", "no rule 'root'");
  expect_refused("", "no rule 'root'");
  expect_refused("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: the rule 'root' is defined twice");
  expect_refused("root = \"a\"", "'::=' must follow");
  expect_refused("root ::= \"a\" )", "')' without '('");
  expect_refused("root ::= \"a\"{3,2}", "at least 3 and at most 2");
  expect_refused("root ::= \"a\"{0}", "no time at all");
  expect_refused("root ::= \"a\"{2", "is not closed");
  expect_refused("root ::= *", "'*' is not expected here");
}

TEST(Grammar, HostileGrammarsAreRefused) {
  expect_refused("root ::= root \"a\" | \"b\"", "'root' is left recursive");
  expect_refused("root ::= \"x\" | a\na ::= \" \"? b\nb ::= a \"y\"", "left recursive");
  expect_refused("root ::= \"\"* root", "left recursive");
  expect_refused("root ::= \"a\" root", "can never come to an end");
  expect_refused("root ::= \"a\" | b\nb ::= \"c\" b", "'b' can never come to an end");
  expect_refused("root ::= \"a\"{1000000}", "more than 100000 times");
  std::string copies = "root ::= ";
  for (int i = 0; i < 20; ++i) copies += "[ab]{100000} ";
  expect_refused(copies, "more than 1048576 states");
  expect_refused("root ::= " + std::string(500, '(') + "\"a\"" + std::string(500, ')'), "nested deeper");
  expect_refused("root ::= \"a\"?*+?*+", "more than four repetitions");
  expect_refused(std::string(kMaxGrammarBytes + 1, ' '), "bytes, more than");
  std::string chain = "root ::= a0\n";
  for (int i = 0; i < 8000; ++i) chain += fmt::format("a{0} ::= \"x\" a{1} \"y\" a{1}? \"z\"\n", i, i + 1);
  expect_refused(chain + "a8000 ::= \"e\"", "nested calls");
}

TEST(Grammar, ExponentialReadingsAreAnError) {
  std::string grammar = "root ::= a0\n";  // each level doubles the stacks
  for (int i = 0; i < 40; ++i)
    grammar += fmt::format("a{0} ::= a{1} [xy]? \"x\"? a40 | a{1} [xz]? a40\n", i, i + 1);
  grammar += "a40 ::= \"x\" (a40 \"y\")?";
  try {
    const Grammar g = Grammar::parse(grammar);
    g.matches("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Errc::Unsupported) << e.what();
  }
}

TEST(GrammarUtf8, SequencesCoverExactlyTheirCodePoints) {
  const CodeRanges ranges =
      normalise({{0x20, 0x7FF}, {0x7F0, 0xD7FF}, {0xD900, 0x10010}, {0x10FFF0, 0x20FFFF}});
  const std::vector<Utf8Sequence> sequences = utf8_sequences(ranges);
  for (uint32_t code = 0; code <= 0x10FFFF; code += code < 0x11000 || code > 0x10FF00 ? 1 : 97) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(bytes, code);
    size_t n_matches = 0;
    for (const Utf8Sequence& s : sequences) {
      bool fits = s.length == bytes.size();
      for (size_t i = 0; fits && i < s.length; ++i)
        fits = s.ranges[i].low <= static_cast<uint8_t>(bytes[i]) &&
               static_cast<uint8_t>(bytes[i]) <= s.ranges[i].high;
      n_matches += fits ? 1 : 0;
    }
    ASSERT_EQ(n_matches, contains(ranges, code) ? 1u : 0u) << code;
  }
}

}  // namespace
}  // namespace moeflux
