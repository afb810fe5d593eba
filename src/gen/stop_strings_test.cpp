#include "gen/stop_strings.h"

#include <gtest/gtest.h>

#include "gen/philox.h"

namespace moeflux {
namespace {

struct Outcome {
  std::string text, stop;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '\'' << o.text << "' + '" << o.stop << '\'';
}

// Feeds the text in pieces of the given sizes, over and over.
Outcome feed(const std::vector<std::string>& stops, const std::string& text,
             const std::vector<size_t>& sizes) {
  StopStrings matcher(stops);
  Outcome out;
  size_t at = 0;
  for (size_t i = 0; at < text.size(); at += sizes[i++ % sizes.size()]) {
    const auto released = matcher.feed(std::string_view(text).substr(at, sizes[i % sizes.size()]));
    out.text += released.text;
    if (released.stop) out.stop += *released.stop;
  }
  out.text += matcher.finish();
  EXPECT_EQ(matcher.stopped(), !out.stop.empty());
  return out;
}

// From the definition: the first end, then the longest.
Outcome plain(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& s : stops)
      if (std::string_view(text).substr(0, end).ends_with(s) && s.size() > best.size()) best = s;
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

TEST(StopStrings, AStopStringEndsTheText) {
  EXPECT_EQ(feed({"</s>"}, "Hello</s> more", {3}), (Outcome{"Hello", "</s>"}));
  EXPECT_EQ(feed({"</s>"}, "a < b </ c </s", {1}), (Outcome{"a < b </ c </s", ""}));
  EXPECT_EQ(feed({"\n\n", "User:"}, "one\ntwo User: \n\n", {4}), (Outcome{"one\ntwo ", "User:"}));
  EXPECT_EQ(feed({""}, "text", {1}), (Outcome{"text", ""}));
  EXPECT_EQ(feed({}, "text", {2}), (Outcome{"text", ""}));
  EXPECT_EQ(feed({"x"}, "x", {1}), (Outcome{"", "x"}));
}

TEST(StopStrings, TheFirstEndWinsAndThenTheLongest) {
  EXPECT_EQ(feed({"abcd", "bc"}, "xabcd", {1}), (Outcome{"xa", "bc"}));
  EXPECT_EQ(feed({"c", "abc", "bc"}, "xabcd", {5}), (Outcome{"x", "abc"}));
}

TEST(StopStrings, ABeginningThatContainsItselfIsFound) {
  EXPECT_EQ(feed({"aab"}, "aaab", {1}), (Outcome{"a", "aab"}));
  EXPECT_EQ(feed({"ababc"}, "abababc", {2}), (Outcome{"ab", "ababc"}));
}

TEST(StopStrings, OnlyWhatMayBecomeAStopStringIsHeldBack) {
  StopStrings matcher({"<|end|>", "\n\n"});
  EXPECT_EQ(matcher.feed("Hello <").text, "Hello ");
  EXPECT_EQ(matcher.held_bytes(), 1u);
  EXPECT_EQ(matcher.feed("|en").text, "");
  EXPECT_EQ(matcher.feed("try\n").text, "<|entry");
  EXPECT_EQ(matcher.feed(" ").text, "\n ");
  EXPECT_EQ(matcher.held_bytes(), 0u);
  EXPECT_EQ(*matcher.feed("\n\nrest").stop, "\n\n");
  EXPECT_EQ(matcher.feed("more").text, "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopStrings, CharactersStayWhole) {
  StopStrings matcher({"é"});
  EXPECT_EQ(matcher.feed("caf\xC3").text, "caf");  // may become one
  EXPECT_EQ(matcher.feed("\xA8!").text, "è!");
  const auto end = matcher.feed("ø, é");
  EXPECT_EQ(end.text, "ø, ");
  EXPECT_NE(end.stop, nullptr);
}

TEST(StopStrings, TheResultDoesNotDependOnTheCuts) {
  const auto random = [](uint32_t a, uint32_t b, uint32_t n) { return philox({a, b, 3, 3}, {2, 9})[0] % n; };
  size_t stopped = 0;
  for (uint32_t trial = 0; trial < 400; ++trial) {
    std::vector<std::string> stops(1 + random(trial, 0, 3));
    for (uint32_t s = 0; s < stops.size(); ++s)
      for (uint32_t i = 0, n = 1 + random(trial, s + 1, 6); i < n; ++i)
        stops[s] += static_cast<char>('a' + random(trial, 100 + 10 * s + i, 2));
    std::string text;
    for (uint32_t i = 0; i < 30; ++i) text += static_cast<char>('a' + random(trial, 1000 + i, i % 7 ? 2 : 3));
    const Outcome want = plain(stops, text);
    for (const std::vector<size_t>& sizes : {std::vector<size_t>{1}, {2}, {30}, {1, 5, 2}, {7, 3}})
      ASSERT_EQ(feed(stops, text, sizes), want) << "trial " << trial;
    stopped += !want.stop.empty();
  }
  EXPECT_GT(stopped, 100u);
  EXPECT_LT(stopped, 400u);
}

}  // namespace
}  // namespace moeflux
