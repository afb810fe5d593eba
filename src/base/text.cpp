#include "base/text.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace moeflux {

std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string format_count(double count) {
  static constexpr const char* kUnits[] = {"", " K", " M", " B", " T"};
  int unit = 0;
  while (count >= 1000 && unit < 4) count /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.2f}{}", count, kUnits[unit]);
}

double parse_share(std::string_view text) {
  double percent = 0;
  const char* end = text.data() + text.size() - (text.ends_with('%') ? 1 : 0);
  const auto [at, err] = std::from_chars(text.data(), end, percent);
  if (!text.ends_with('%') || err != std::errc() || at != end || !(percent > 0 && percent <= 100))
    fail(Errc::InvalidArgument, "'{}' is not a share of the experts: write for example 25%, at most 100%",
         text);
  return percent / 100;
}

uint64_t parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  static constexpr struct {
    std::string_view name;
    double factor;
  } kUnits[] = {{"", 1},       {"B", 1},        {"K", 0x1p10},   {"KiB", 0x1p10}, {"KB", 1e3},
                {"M", 0x1p20}, {"MiB", 0x1p20}, {"MB", 1e6},     {"G", 0x1p30},   {"GiB", 0x1p30},
                {"GB", 1e9},   {"T", 0x1p40},   {"TiB", 0x1p40}, {"TB", 1e12}};
  if (err == std::errc() && value >= 0) {
    for (const auto& known : kUnits)
      if (unit == known.name && value * known.factor < 0x1p62)
        return static_cast<uint64_t>(std::llround(value * known.factor));
  }
  fail(Errc::InvalidArgument, "'{}' is not a size: write for example 6GiB, 500MB or 4096", text);
}

}  // namespace moeflux
