#include "text/jinja_time.h"

#include <charconv>
#include <chrono>
#include <ctime>

#include "base/error.h"
#include "text/jinja_meter.h"

namespace moeflux::jinja {
namespace {

int number(std::string_view text, size_t at, size_t n_digits, int least, int most, std::string_view whole) {
  int value = 0;
  const std::string_view digits = text.substr(std::min(at, text.size()), n_digits);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || digits.size() != n_digits || end != digits.data() + n_digits ||
      digits[0] == '-' || value < least || value > most)
    fail(Errc::InvalidArgument, "'{}' is not a time such as 2026-01-02T03:04:05", whole);
  return value;
}

std::tm broken_down(const LocalTime& t) {
  using namespace std::chrono;
  const sys_days day = year{t.year} / t.month / t.day;
  std::tm tm{};
  tm.tm_year = t.year - 1900;
  tm.tm_mon = t.month - 1;
  tm.tm_mday = t.day;
  tm.tm_hour = t.hour;
  tm.tm_min = t.minute;
  tm.tm_sec = t.second;
  tm.tm_wday = static_cast<int>(weekday(day).c_encoding());
  tm.tm_yday = static_cast<int>((day - sys_days(year{t.year} / 1 / 1)).count());
  tm.tm_isdst = -1;
  return tm;
}

// One directive with its flag. Widths are left out: they serve nobody but an attacker.
std::string expand(const std::tm& tm, const std::string& directive) {
  const char letter = directive.back();
  if (letter == 'f') return "000000";
  if (letter == 'z' || letter == 'Z') return "";
  char buffer[128];
  return {buffer, std::strftime(buffer, sizeof(buffer), directive.c_str(), &tm)};
}

}  // namespace

LocalTime parse_local_time(std::string_view text) {
  LocalTime t;
  const auto want = [&](size_t at, std::string_view any_of) {
    if (at >= text.size() || any_of.find(text[at]) == any_of.npos)
      fail(Errc::InvalidArgument, "'{}' is not a time such as 2026-01-02T03:04:05", text);
  };
  t.year = number(text, 0, 4, 1, 9999, text);
  want(4, "-");
  t.month = number(text, 5, 2, 1, 12, text);
  want(7, "-");
  t.day = number(text, 8, 2, 1, 31, text);
  using namespace std::chrono;
  if (!year_month_day(year{t.year} / t.month / t.day).ok())
    fail(Errc::InvalidArgument, "'{}' is not a day of the calendar", text);
  if (text.size() == 10) return t;
  want(10, "T ");
  t.hour = number(text, 11, 2, 0, 23, text);
  want(13, ":");
  t.minute = number(text, 14, 2, 0, 59, text);
  if (text.size() == 16) return t;
  want(16, ":");
  t.second = number(text, 17, 2, 0, 59, text);
  if (text.size() != 19) fail(Errc::InvalidArgument, "'{}' is not a time such as 2026-01-02T03:04:05", text);
  return t;
}

LocalTime local_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  ::localtime_r(&now, &tm);
  return {tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec};
}

std::string format_time(const LocalTime& time, std::string_view format) {
  static constexpr std::string_view kFlags = "-_0^#", kLetters = "aAbBcCdDeFfgGhHIjklmMnpPrRSstTuUVwWxXyYzZ%";
  const std::tm tm = broken_down(time);
  std::string out;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    std::string directive = "%";
    if (at + 1 < format.size() && kFlags.find(format[at + 1]) != kFlags.npos) directive += format[++at];
    if (at + 1 >= format.size() || kLetters.find(format[at + 1]) == kLetters.npos)
      refuse("strftime_now does not know the format '{}'", format);
    directive += format[++at];
    out += expand(tm, directive);
  }
  return out;
}

}  // namespace moeflux::jinja
