#include "io/faulty_queue.h"

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr size_t kBlock = 4096;  // reads past the page cache come in whole blocks

}  // namespace

FaultyQueue::FaultyQueue(std::unique_ptr<ReadQueue> inner, Faults faults, uint64_t seed)
    : inner_(std::move(inner)), random_(seed), faults_(std::move(faults)) {}

FaultyQueue::~FaultyQueue() = default;

void FaultyQueue::set(Faults faults) {
  const std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
}

void FaultyQueue::release() {
  const std::lock_guard lock(mutex_);
  released_.insert(released_.end(), kept_.begin(), kept_.end());
  kept_.clear();
}

size_t FaultyQueue::kept_back() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

size_t FaultyQueue::submit(std::span<const ReadRequest> requests) {
  const size_t n = std::min(requests.size(), depth() - in_flight_);
  in_flight_ += n;
  for (ReadRequest r : requests.first(n)) {
    const std::lock_guard lock(mutex_);
    if (faults_.keep_back && faults_.keep_back(r)) {
      kept_.push_back(r);
      continue;
    }
    if (const int err = faults_.error ? faults_.error(r) : 0) {
      late_.push_back({{r.tag, err, 0}, Clock::now()});
      continue;
    }
    if (r.into.size() > kBlock && chance() < faults_.shorten) {
      const size_t blocks = r.into.size() / kBlock;
      r.into = r.into.first((1 + random_() % blocks) * kBlock);
    }
    check(inner_->submit({&r, 1}) == 1, "room in the inner queue");
    asked_.push_back(r);
  }
  return n;
}

void FaultyQueue::collect(std::chrono::milliseconds timeout) {
  ReadDone done[64];
  const size_t n = inner_->wait(done, timeout);
  const std::lock_guard lock(mutex_);
  for (const ReadDone& d : std::span(done, n)) {
    const auto it = std::ranges::find(asked_, d.tag, &ReadRequest::tag);
    if (faults_.damage) faults_.damage(*it);
    asked_.erase(it);
    auto due = Clock::now();
    if (chance() < faults_.delay)
      due += std::chrono::microseconds(random_() % (1 + static_cast<uint64_t>(faults_.most_delay.count())));
    late_.push_back({d, due});
  }
  for (const ReadRequest& r : released_) {
    check(inner_->submit({&r, 1}) == 1, "room in the inner queue");
    asked_.push_back(r);
  }
  released_.clear();
}

size_t FaultyQueue::take_due(std::span<ReadDone> out) {
  std::ranges::shuffle(late_, random_);
  size_t n = 0;
  const auto now = Clock::now();
  std::erase_if(late_, [&](const Late& l) {
    if (n == out.size() || l.due > now) return false;
    out[n++] = l.done;
    return true;
  });
  in_flight_ -= n;
  return n;
}

size_t FaultyQueue::wait(std::span<ReadDone> out, std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  for (;;) {
    collect(std::chrono::milliseconds(late_.empty() && !asked_.empty() ? 1 : 0));
    const size_t n = take_due(out);
    if (n > 0 || in_flight_ == 0 || Clock::now() >= until) return n;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace moeflux
