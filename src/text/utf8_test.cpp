#include "text/utf8.h"

#include <gtest/gtest.h>

namespace moeflux {
namespace {

struct Utf8Case {
  std::string bytes, text;
};

// The replacement of maximal parts, from the examples in the Unicode standard and the borders of each length.
const std::vector<Utf8Case> kCases = {
    {"", ""},
    {"plain ASCII that is longer than eight bytes", "plain ASCII that is longer than eight bytes"},
    {"\xC3\xA9\xE6\x97\xA5\xF0\x9F\x91\x8D", "é日👍"},
    {"\xC0\xAF", "\uFFFD\uFFFD"},
    {"\xE0\x80\xAF", "\uFFFD\uFFFD\uFFFD"},
    {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
    {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
    {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\x41"},
    {"\xF4\x8F\xBF\xBF\xEE\x80\x80", "\U0010FFFF\uE000"},
    {"a\xFFz\x80", "a\uFFFDz\uFFFD"},
    {"\xF0\x9F\x91", "\uFFFD"},
};

TEST(Utf8, IllFormedPartsAreReplaced) {
  for (const Utf8Case& c : kCases) {
    EXPECT_EQ(replace_ill_formed(c.bytes), c.text);
    EXPECT_EQ(well_formed_bytes(c.text), c.text.size());
    EXPECT_EQ(well_formed_bytes(c.bytes) == c.bytes.size(), c.bytes == c.text);
  }
}

TEST(Utf8, PiecesGiveTheSameTextAndWholeCharactersAtEveryStep) {
  for (const Utf8Case& c : kCases)
    for (size_t step : {1, 2, 3, 5}) {
      Utf8Assembler assembler;
      std::string text;
      for (size_t at = 0; at < c.bytes.size(); at += step) {
        assembler.push(std::string_view(c.bytes).substr(at, step), text);
        EXPECT_EQ(well_formed_bytes(text), text.size());
      }
      assembler.finish(text);
      EXPECT_EQ(text, c.text) << step;
    }
}

TEST(Utf8, CodePointsGoThereAndBack) {
  for (uint32_t point : {0x0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text = "a";
    append_utf8(text, point);
    const char* at = text.data() + 1;
    EXPECT_EQ(next_code_point(at), point);
    EXPECT_EQ(at, text.data() + text.size());
    EXPECT_EQ(previous_character(at), text.data() + 1);
  }
}

}  // namespace
}  // namespace moeflux
