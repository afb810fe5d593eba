// What a template may use: steps, memory, output, depth. A template comes with a checkpoint and may be
// hostile, so everything that it makes grow is counted here before it grows. Going beyond a limit is a
// Refusal like any other.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace moeflux::jinja {

// Why a template cannot be rendered. Whoever renders adds the name of the template and the line.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Refusal(fmt::format(format, std::forward<Args>(args)...));
}

struct Limits {
  uint64_t steps = 50'000'000;              // evaluated nodes, plus work on texts and lists
  size_t memory_bytes = size_t{256} << 20;  // of all values that are alive
  size_t output_bytes = size_t{64} << 20;
  unsigned depth = 800;  // of nested evaluation, which is recursion of ours: takes less than 2 MiB of stack
};

class Meter {
 public:
  explicit Meter(const Limits& limits) : limits_(limits) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void step(uint64_t n = 1) {
    steps_ += n;
    if (steps_ > limits_.steps) refuse("it takes more than {} steps", limits_.steps);
  }
  void copy(size_t bytes) { step(1 + bytes / 16); }  // work at the speed of memory
  void scan(size_t bytes) { step(1 + bytes / 4); }   // work that looks at every character

  void allocate(size_t bytes) {
    if (bytes > limits_.memory_bytes - memory_bytes_)
      refuse("it needs more than {} bytes of memory", limits_.memory_bytes);
    memory_bytes_ += bytes;
    copy(bytes);
  }
  void release(size_t bytes) noexcept { memory_bytes_ -= bytes; }
  // Before a result of a known size is made, so that it is never begun where there is no room for it.
  void expect_room(size_t bytes) const {
    if (bytes > limits_.memory_bytes - memory_bytes_)
      refuse("it needs more than {} bytes of memory", limits_.memory_bytes);
  }

  const Limits& limits() const { return limits_; }
  size_t memory_bytes() const { return memory_bytes_; }

 private:
  friend class Descent;

  const Limits limits_;
  uint64_t steps_ = 0;
  size_t memory_bytes_ = 0;
  unsigned depth_ = 0;
};

// One level of recursion, for as long as it lives.
class Descent {
 public:
  explicit Descent(Meter& meter) : meter_(meter) {
    if (meter_.depth_ >= meter_.limits_.depth)
      refuse("it is nested deeper than {} levels", meter_.limits_.depth);
    ++meter_.depth_;
  }
  ~Descent() { --meter_.depth_; }
  Descent(const Descent&) = delete;
  Descent& operator=(const Descent&) = delete;

 private:
  Meter& meter_;
};

// The memory of one value, given back when the value dies.
class Charge {
 public:
  Charge(Meter& meter, size_t bytes) : meter_(meter) { grow(bytes); }
  ~Charge() { meter_.release(bytes_); }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  void grow(size_t bytes) {
    meter_.allocate(bytes);
    bytes_ += bytes;
  }
  Meter& meter() const { return meter_; }

 private:
  Meter& meter_;
  size_t bytes_ = 0;
};

}  // namespace moeflux::jinja
