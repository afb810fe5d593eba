#include "io/read_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/threads.h"

namespace moeflux {
namespace {

class PreadQueue : public ReadQueue {
 public:
  explicit PreadQueue(size_t depth) : depth_(depth) {
    start_threads(
        depth, [this](size_t) { serve(); }, [this] { end(); }, threads_);
  }

  ~PreadQueue() override { end(); }

  std::string_view name() const override { return "pread"; }
  size_t depth() const override { return depth_; }

  size_t submit(std::span<const ReadRequest> requests) override {
    const std::lock_guard lock(mutex_);
    const size_t n = std::min(requests.size(), depth_ - in_flight_);
    for (const ReadRequest& r : requests.first(n)) {
      todo_.push_back(r);
      asked_.notify_one();
    }
    in_flight_ += n;
    return n;
  }

  size_t wait(std::span<ReadDone> out, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    done_.wait_for(lock, timeout, [&] { return !finished_.empty() || in_flight_ == 0; });
    const size_t n = std::min(out.size(), finished_.size());
    std::copy_n(finished_.begin(), n, out.begin());
    finished_.erase(finished_.begin(), finished_.begin() + static_cast<ptrdiff_t>(n));
    in_flight_ -= n;
    return n;
  }

 private:
  static ReadDone read(const ReadRequest& r) {
    for (;;) {
      const ssize_t n = pread(r.fd, r.into.data(), r.into.size(), static_cast<off_t>(r.offset));
      if (n >= 0) return {r.tag, 0, static_cast<size_t>(n)};
      if (errno != EINTR) return {r.tag, errno, 0};
    }
  }

  void end() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    asked_.notify_all();
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      asked_.wait(lock, [&] { return stop_ || !todo_.empty(); });
      if (todo_.empty()) return;
      const ReadRequest r = todo_.front();
      todo_.pop_front();
      lock.unlock();
      const ReadDone d = read(r);
      lock.lock();
      finished_.push_back(d);
      done_.notify_one();
    }
  }

  const size_t depth_;
  std::mutex mutex_;  // guards all below
  std::condition_variable asked_, done_;
  std::deque<ReadRequest> todo_;
  std::deque<ReadDone> finished_;
  size_t in_flight_ = 0;  // submitted and not given back
  bool stop_ = false;
  std::vector<std::jthread> threads_;  // last: they end before what they use
};

}  // namespace

void ReadQueue::register_memory(std::span<const std::span<std::byte>>) {}
uint64_t ReadQueue::registered_bytes() const { return 0; }

std::unique_ptr<ReadQueue> make_pread_queue(size_t depth) { return std::make_unique<PreadQueue>(depth); }

std::vector<std::string> read_queue_names() { return {"auto", "uring", "pread"}; }

std::unique_ptr<ReadQueue> make_read_queue(std::string_view name, size_t depth) {
  if (name == "pread") return make_pread_queue(depth);
  std::string why;
  auto queue = make_uring_queue(depth, why);
  if (!queue && name == "uring") fail(Errc::Unsupported, "io_uring cannot be used: {}", why);
  return queue ? std::move(queue) : make_pread_queue(depth);
}

}  // namespace moeflux
