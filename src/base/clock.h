// Times in seconds.
#pragma once

#include <chrono>

namespace moeflux {

inline double in_seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return in_seconds(std::chrono::steady_clock::now() - start);
}

}  // namespace moeflux
