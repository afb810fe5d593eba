// How far a piece of work is. Reports go to a sink where one is given; without one, they are a progress bar
// with rate and time left on stderr, for everything that takes longer than a second: nothing when stderr is
// no terminal that can redraw a line, and nothing during the first second. add() may be called by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace moeflux {

enum class ProgressUnit : uint8_t { Bytes, Tokens };

struct ProgressReport {
  std::string_view what;
  uint64_t done, total;
  ProgressUnit unit;
  bool ended;  // the last report, whether the work was done or given up
};
// Called at most ten times a second and at the end, by the threads that work, one call at a time.
using ProgressSink = std::function<void(const ProgressReport&)>;

class Progress {
 public:
  using Unit = ProgressUnit;
  Progress(std::string what, uint64_t total, Unit unit = Unit::Bytes, ProgressSink sink = {});
  Progress(std::string what, uint64_t total, ProgressSink sink)
      : Progress(std::move(what), total, Unit::Bytes, std::move(sink)) {}
  ~Progress();
  void add(uint64_t n);

 private:
  void draw(std::chrono::steady_clock::time_point now, uint64_t done);

  const std::string what_;
  const uint64_t total_;
  const Unit unit_;
  const ProgressSink sink_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::atomic<uint64_t> done_ = 0;
  std::mutex mutex_;  // guards last_draw_ and shown_
  std::chrono::steady_clock::time_point last_draw_;
  bool shown_ = false;
};

}  // namespace moeflux
