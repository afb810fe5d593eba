#include "text/grammar_ending.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace moeflux {
namespace {

// After `text`: how many bytes it takes at least, and which.
void expect_ending(const std::string& grammar, const std::string& text, const std::string& ending) {
  const Grammar g = Grammar::parse(grammar);
  GrammarState state = g.start();
  ASSERT_TRUE(g.advance(state, text)) << grammar << "\n: " << text;
  const GrammarEnding endings(g);
  EXPECT_EQ(endings.bytes(state), ending.size()) << grammar << "\n: " << text;
  EXPECT_EQ(endings.text(state, 1000), ending) << grammar << "\n: " << text;
  EXPECT_EQ(endings.text(state, 2), ending.substr(0, 2));
  EXPECT_TRUE(g.matches(text + ending)) << grammar << "\n: " << text << ending;
}

TEST(GrammarEnding, FindsTheShortestOfAllWays) {
  expect_ending(R"(root ::= "abc" | "bd" | "az")", "", "az");
  expect_ending(R"(root ::= "abc" | "bd" | "az")", "ab", "c");
  expect_ending(R"(root ::= "abc" | "bd" | "az")", "bd", "");
  expect_ending(R"(root ::= [b-x]{3,9} "." | "long way home")", "", "bbb.");
  expect_ending(R"(root ::= [b-x]{3,9} "." | "long way home")", "l", "bb.");
  expect_ending(R"(root ::= [b-x]{3,9} "." | "long way home")", "long ", "way home");
  expect_ending("root ::= [\u00e9a]*", "\xc3", "\xa9");
}

TEST(GrammarEnding, LeavesEveryRuleThatIsOpen) {
  const std::string nested = R"grammar(
    root  ::= value
    value ::= "[" (value ("," value)*)? "]" | "(" value ")" | "x" | pair
    pair  ::= "<" value ":" value ">")grammar";
  expect_ending(nested, "", "x");
  expect_ending(nested, "[", "]");
  expect_ending(nested, "[x,", "x]");
  expect_ending(nested, "([[x,(", "x)]])");
  expect_ending(nested, "<[(<x", ":x>)]:x>");
  expect_ending(nested, std::string(300, '('), "x" + std::string(300, ')'));
}

TEST(GrammarEnding, DistancesBeyondCountingAreNoTrouble) {
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < 100; ++i) rules += fmt::format("r{} ::= r{} r{}\n", i, i + 1, i + 1);
  const Grammar g = Grammar::parse(rules + "r100 ::= \"a\"\n");
  const GrammarEnding endings(g);
  EXPECT_GT(endings.bytes(g.start()), uint64_t{1} << 50);
  EXPECT_EQ(endings.text(g.start(), 20), std::string(20, 'a'));
}

}  // namespace
}  // namespace moeflux
