#include "tools/plot.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moeflux {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// What the drawing uses of XML: elements with quoted attributes, properly nested, and text with three
// entities. Returns what is wrong, or nothing.
std::string xml_fault(const std::string& xml) {
  std::vector<std::string> open;
  size_t at = 0, roots = 0;
  while (at < xml.size()) {
    if (xml[at] == '&') {
      const std::string entity = xml.substr(at, xml.find(';', at) - at);
      if (entity != "&amp" && entity != "&lt" && entity != "&gt") return "entity " + entity;
    }
    if (xml[at] == '>') return "stray >";
    if (xml[at] != '<') {
      ++at;
      continue;
    }
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return "tag without an end";
    std::string tag = xml.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.find('<') != std::string::npos || count(tag, "=") != count(tag, "=\"") ||
        count(tag, "=\"") * 2 != count(tag, "\""))
      return "attributes of " + tag;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "unexpected " + tag;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      if (open.empty() && ++roots > 1) return "two roots";
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty() ? "" : "open " + open.back();
}

Plot sample() {
  return {
      .title = "a < b & \"c\" > d\n\xff",
      .x_label = "RAM",
      .x = {1, 2, 4},
      .panels = {
          {.y_label = "tok/s",
           .series = {{.name = "measured", .values = {2.5, 3.5, 9}},
                      {.name = "limit", .values = {3, NAN, 11}, .dashed = true}}},
          {.y_label = "hit rate, %", .series = {{.name = "hits", .values = {20, 50, 100}}}, .y_most = 100}}};
}

TEST(Plot, IsWellFormedAndHoldsEverySeries) {
  const std::string svg = to_svg(sample());
  EXPECT_EQ(xml_fault(svg), "") << svg;
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_NE(svg.find("a &lt; b &amp; \"c\" &gt; d??"), std::string::npos) << svg;
  EXPECT_EQ(count(svg, "<path "), 3u);
  EXPECT_EQ(count(svg, "<circle "), 8u);  // a value that is not there has no point
  EXPECT_EQ(count(svg, "class=\"line c1 dashed\" d=\""), 1u);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  for (const char* word : {">measured<", ">limit<", ">hits<", ">tok/s<", ">RAM<"})
    EXPECT_NE(svg.find(word), std::string::npos) << word;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Plot, OnePointAndNoValuesAreDrawnToo) {
  for (const double value : {0.0, 1e-9, 5.0, 1e12, std::nan("")}) {
    const std::string svg =
        to_svg({.title = "t", .x_label = "x", .x = {8}, .panels = {{"y", {{"s", {value}}}}}});
    EXPECT_EQ(xml_fault(svg), "") << svg;
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  }
}

TEST(Plot, TheTestFindsFaults) {
  for (const char* bad :
       {"<a>", "<a></b>", "<a b=c></a>", "<a>&nbsp;</a>", "<a>1 > 2</a>", "<a></a><a></a>", "<a"})
    EXPECT_NE(xml_fault(bad), "") << bad;
}

}  // namespace
}  // namespace moeflux
