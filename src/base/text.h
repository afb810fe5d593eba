// Bytes and counts as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moeflux {

std::string format_bytes(uint64_t bytes);     // 1.50 GiB, 576 B
std::string format_count(double count);       // 30.5 B, 3.34 M
double parse_share(std::string_view text);    // 25% is 0.25; in (0, 100 %]; throws Error{InvalidArgument}
uint64_t parse_bytes(std::string_view text);  // 6GiB, 6G, 500MB, 4096; throws Error{InvalidArgument}

}  // namespace moeflux
