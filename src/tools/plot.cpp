#include "tools/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr double kWidth = 720, kLeft = 64, kRight = 24, kTop = 44, kBottom = 40;
constexpr double kPanelHeight = 200, kPanelGap = 56;
constexpr size_t kColours = 4;

// Colours with enough contrast on both grounds; a page that is neither gets the light ones.
constexpr const char* kStyle = R"(<style>
  .ground { fill: #ffffff; } .text { fill: #24292f; font: 13px sans-serif; } .title { font-size: 15px; }
  .grid { stroke: #d0d7de; stroke-width: 1; } .line { fill: none; stroke-width: 2; } .dashed { stroke-dasharray: 6 5; }
  .c0 { stroke: #0969da; } .c1 { stroke: #bc4c00; } .c2 { stroke: #1a7f37; } .c3 { stroke: #8250df; }
  .d0 { fill: #0969da; } .d1 { fill: #bc4c00; } .d2 { fill: #1a7f37; } .d3 { fill: #8250df; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; } .text { fill: #e6edf3; } .grid { stroke: #30363d; }
    .c0 { stroke: #58a6ff; } .c1 { stroke: #f0883e; } .c2 { stroke: #3fb950; } .c3 { stroke: #bc8cff; }
    .d0 { fill: #58a6ff; } .d1 { fill: #f0883e; } .d2 { fill: #3fb950; } .d3 { fill: #bc8cff; }
  }
</style>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else  // no other bytes: a control character or half a letter would make the file unreadable
      out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out;
}

struct Axis {  // values from low to high, drawn from `begin` to `end`
  double low, high, step, begin, end;
  double place(double value) const { return begin + (value - low) / (high - low) * (end - begin); }
};

// About five steps of 1, 2 or 5 times a power of ten, of which whole ones cover the values.
Axis make_axis(double low, double high, double begin, double end) {
  if (!(high > low)) high = low + 1;
  const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / power;
  const double step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
  return {std::floor(low / step) * step, std::ceil(high / step - 1e-9) * step, step, begin, end};
}

std::vector<double> ticks(const Axis& axis) {
  std::vector<double> values;
  const auto n = static_cast<int>(std::lround((axis.high - axis.low) / axis.step));
  for (int i = 0; i <= n; ++i) values.push_back(axis.low + i * axis.step);
  return values;
}

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    const double height =
        kTop + kBottom + static_cast<double>(plot.panels.size()) * (kPanelHeight + kPanelGap);
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n",
        kWidth, height);
    out_ += kStyle;
    put("<rect class=\"ground\" width=\"{}\" height=\"{}\"/>\n", kWidth, height);
    text(kLeft, 24, "title", plot.title);
    const auto [least, most] = std::ranges::minmax(plot.x);
    x_ = make_axis(std::min(0.0, least), most, kLeft, kWidth - kRight);
    for (size_t i = 0; i < plot.panels.size(); ++i) panel(i);
    text(kLeft, height - 12, "", plot.x_label);
  }

  std::string finish() { return out_ + "</svg>\n"; }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void text(double x, double y, const char* more, const std::string& what, const char* anchor = "start") {
    put("<text class=\"text {}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", more, x, y,
        anchor, escaped(what));
  }

  void grid_line(double x1, double y1, double x2, double y2) {
    put("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x1, y1, x2, y2);
  }

  void panel(size_t index) {
    const PlotPanel& p = plot_.panels[index];
    const double top = kTop + kPanelGap * 0.6 + static_cast<double>(index) * (kPanelHeight + kPanelGap);
    double most = p.y_most;
    for (const PlotSeries& s : p.series)
      for (const double v : s.values)
        if (p.y_most == 0 && std::isfinite(v)) most = std::max(most, v);
    const Axis y = make_axis(0, most, top + kPanelHeight, top);
    for (const double v : ticks(y)) {
      grid_line(x_.begin, y.place(v), x_.end, y.place(v));
      text(kLeft - 8, y.place(v) + 4, "", fmt::format("{:.6g}", v), "end");
    }
    for (const double v : ticks(x_)) {
      grid_line(x_.place(v), y.begin, x_.place(v), y.begin + 5);
      text(x_.place(v), y.begin + 19, "", fmt::format("{:.6g}", v), "middle");
    }
    text(kLeft, top - 8, "", p.y_label);
    for (size_t s = 0; s < p.series.size(); ++s) {
      legend(p, s, top - 12);
      series(p.series[s], s % kColours, y);
    }
  }

  void legend(const PlotPanel& p, size_t s, double y) {  // from the right, the last one outermost
    const double x = x_.end - 130 * static_cast<double>(p.series.size() - s);
    put("<line class=\"line c{}{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
        s % kColours, p.series[s].dashed ? " dashed" : "", x, y, x + 28, y);
    text(x + 34, y + 4, "", p.series[s].name);
  }

  void series(const PlotSeries& s, size_t colour, const Axis& y) {
    check(s.values.size() == plot_.x.size(), "a value for each x");
    std::string path;
    bool open = false;  // a line that the next point continues
    for (size_t i = 0; i < s.values.size(); ++i) {
      const bool there = std::isfinite(s.values[i]);
      if (there)
        path += fmt::format("{}{:.1f} {:.1f} ", open ? "L" : "M", x_.place(plot_.x[i]), y.place(s.values[i]));
      open = there;
    }
    if (!path.empty())
      put("<path class=\"line c{}{}\" d=\"{}\"/>\n", colour, s.dashed ? " dashed" : "", path);
    for (size_t i = 0; i < s.values.size(); ++i)
      if (std::isfinite(s.values[i]))
        put("<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n", colour, x_.place(plot_.x[i]),
            y.place(s.values[i]));
  }

  const Plot& plot_;
  std::string out_;
  Axis x_{};
};

}  // namespace

std::string to_svg(const Plot& plot) {
  check(!plot.x.empty(), "something to plot");
  return Drawing(plot).finish();
}

}  // namespace moeflux
