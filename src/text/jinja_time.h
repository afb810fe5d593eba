// The time that strftime_now sees. It is given by whoever renders, so that a rendering can be repeated.
#pragma once

#include <string>
#include <string_view>

namespace moeflux::jinja {

struct LocalTime {
  int year = 1970, month = 1, day = 1, hour = 0, minute = 0, second = 0;
};

// "2026-01-02T03:04:05", or with a blank in place of the T, or the date alone; throws Error{InvalidArgument}.
LocalTime parse_local_time(std::string_view text);
LocalTime local_time_now();

// As Python's strftime in the C locale, for a time without a zone; throws Refusal for what is not supported.
std::string format_time(const LocalTime& time, std::string_view format);

}  // namespace moeflux::jinja
