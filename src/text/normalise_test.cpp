#include "text/normalise.h"

#include <gtest/gtest.h>

namespace moeflux {
namespace {

struct Case {
  std::string text, composed;
};

TEST(Normalise, ComposesOrdersAndDecomposes) {
  const std::vector<Case> cases = {
      {"", ""},
      {"no marks at all, 日本 👍", "no marks at all, 日本 👍"},
      {"e\u0301", "\u00E9"},
      {"\u212B\u2126", "\u00C5\u03A9"},                             // characters that are another one
      {"s\u0307\u0323", "\u1E69"},                                  // marks in another order
      {"\u1E9B\u0323", "\u1E9B\u0323"},                             // no such letter
      {"a\u0315\u0300\u05AE\u0300b", "\u00E0\u05AE\u0300\u0315b"},  // sorted by class; one composes
      {"\u0958", "\u0915\u093C"},                                   // never composed
      {"\u1100\u1161\u11A8", "\uAC01"},
      {"\uAC00\u11A8\u11A8", "\uAC01\u11A8"},
      {"\u0301\u0301e", "\u0301\u0301e"},
      {"\u0344", "\u0308\u0301"},
      {"x\u0301\u0301", "x\u0301\u0301"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(nfc(c.text), c.composed) << c.text;
    EXPECT_EQ(nfc(c.composed), c.composed);
    EXPECT_TRUE(c.text == c.composed || may_need_nfc(c.text));
  }
  EXPECT_FALSE(may_need_nfc("caf\u00E9 日本 👍"));
}

}  // namespace
}  // namespace moeflux
