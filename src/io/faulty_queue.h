// A read queue that misbehaves as drives do, for tests: it delays, reorders, shortens, fails and keeps back
// the reads of the queue that it stands before.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <random>

#include "io/read_queue.h"

namespace moeflux {

struct Faults {
  double shorten = 0, delay = 0;                           // shares of the reads
  std::chrono::microseconds most_delay{300};               // of a delayed read; later ones overtake it
  std::function<int(const ReadRequest&)> error = {};       // the errno to fail with, or 0
  std::function<bool(const ReadRequest&)> keep_back = {};  // does not come back until release()
  std::function<void(const ReadRequest&)> damage = {};     // is called when the bytes are there
};

class FaultyQueue : public ReadQueue {
 public:
  FaultyQueue(std::unique_ptr<ReadQueue> inner, Faults faults, uint64_t seed = 1);
  ~FaultyQueue() override;

  std::string_view name() const override { return "faulty"; }
  size_t depth() const override { return inner_->depth(); }
  size_t submit(std::span<const ReadRequest> requests) override;
  size_t wait(std::span<ReadDone> out, std::chrono::milliseconds timeout) override;

  // From any thread.
  void set(Faults faults);
  void release();  // what was kept back comes back now, read
  size_t kept_back() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Late {
    ReadDone done;
    Clock::time_point due;
  };
  double chance() { return std::uniform_real_distribution<>(0, 1)(random_); }
  void collect(std::chrono::milliseconds timeout);
  size_t take_due(std::span<ReadDone> out);

  std::unique_ptr<ReadQueue> inner_;
  std::mt19937_64 random_;
  mutable std::mutex mutex_;  // guards faults_, kept_ and released_
  Faults faults_;
  std::deque<ReadRequest> kept_;
  std::deque<ReadRequest> released_;
  std::vector<ReadRequest> asked_;  // of the inner queue
  std::vector<Late> late_;
  size_t in_flight_ = 0;
};

}  // namespace moeflux
