// A line plot as SVG: panels one above the other over the same x axis. The drawing carries its colours for
// light and dark pages and needs nothing else.
#pragma once

#include <string>
#include <vector>

namespace moeflux {

struct PlotSeries {
  std::string name;
  std::vector<double> values = {};  // one for each x; one that is not finite leaves a gap
  bool dashed = false;              // a limit rather than a measurement
};

struct PlotPanel {
  std::string y_label;
  std::vector<PlotSeries> series = {};
  double y_most = 0;  // end of the y axis; 0: as the values need
};

struct Plot {
  std::string title, x_label;
  std::vector<double> x = {};  // ascending
  std::vector<PlotPanel> panels = {};
};

std::string to_svg(const Plot& plot);

}  // namespace moeflux
