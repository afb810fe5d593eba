// A progress bar with rate and time left, on stderr, for everything that takes longer than a second. It
// prints nothing when stderr is no terminal that can redraw a line, and nothing during the first second.
// add() may be called by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace moeflux {

class Progress {
 public:
  enum class Unit : uint8_t { Bytes, Tokens };
  Progress(std::string what, uint64_t total, Unit unit = Unit::Bytes);
  ~Progress();
  void add(uint64_t n);

 private:
  void draw(std::chrono::steady_clock::time_point now, uint64_t done);

  const std::string what_;
  const uint64_t total_;
  const Unit unit_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::atomic<uint64_t> done_ = 0;
  std::mutex mutex_;  // guards last_draw_ and shown_
  std::chrono::steady_clock::time_point last_draw_;
  bool shown_ = false;
};

}  // namespace moeflux
