// The io_uring queue: one ring, plain reads, or reads into registered memory where the system lets us
// register it.
#include "io/read_queue.h"

#ifdef MOEFLUX_URING
#include <liburing.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#endif

namespace moeflux {

#ifdef MOEFLUX_URING
namespace {

class UringQueue : public ReadQueue {
 public:
  UringQueue(const io_uring& ring, size_t depth) : ring_(ring), depth_(depth) {}
  UringQueue(const UringQueue&) = delete;

  ~UringQueue() override {
    ReadDone done[16];
    while (in_flight_ > 0) wait(done, std::chrono::seconds(1));
    io_uring_queue_exit(&ring_);
  }

  std::string_view name() const override { return "io_uring"; }
  size_t depth() const override { return depth_; }

  size_t submit(std::span<const ReadRequest> requests) override {
    const size_t n = std::min(requests.size(), depth_ - in_flight_);
    for (const ReadRequest& r : requests.first(n)) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      check(sqe != nullptr, "an entry for every read up to the ring's depth");
      const auto bytes = static_cast<unsigned>(r.into.size());
      const int buffer = registered(r.into);
      if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, r.fd, r.into.data(), bytes, r.offset, buffer);
      else
        io_uring_prep_read(sqe, r.fd, r.into.data(), bytes, r.offset);
      io_uring_sqe_set_data64(sqe, r.tag);
    }
    in_flight_ += n;
    // The kernel may take fewer at once when it is short of memory; the rest goes with the next call or wait.
    if (n > 0) io_uring_submit(&ring_);
    return n;
  }

  size_t wait(std::span<ReadDone> out, std::chrono::milliseconds timeout) override {
    if (in_flight_ == 0) return 0;
    if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
    io_uring_cqe* cqe = nullptr;
    const auto s = std::chrono::duration_cast<std::chrono::seconds>(timeout);
    __kernel_timespec limit{s.count(), std::chrono::nanoseconds(timeout - s).count()};
    if (io_uring_peek_cqe(&ring_, &cqe) != 0) io_uring_wait_cqes(&ring_, &cqe, 1, &limit, nullptr);
    size_t n = 0;
    while (n < out.size() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const int result = cqe->res;
      const uint64_t tag = io_uring_cqe_get_data64(cqe);
      io_uring_cqe_seen(&ring_, cqe);
      out[n++] = {tag, result < 0 ? -result : 0, result < 0 ? 0 : static_cast<size_t>(result)};
      --in_flight_;
    }
    return n;
  }

  void register_memory(std::span<const std::span<std::byte>> parts) override {
    if (parts.size() > kMostParts || !parts_.empty()) return;
    if (io_uring_register_buffers_sparse(&ring_, static_cast<unsigned>(parts.size())) != 0) return;
    for (const auto& p : parts) parts_.push_back({p, false});
    std::ranges::sort(parts_, {}, [](const Part& p) { return p.memory.data(); });
  }

  uint64_t registered_bytes() const override { return registered_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kMostParts = 16384;  // the kernel's limit

  struct Part {
    std::span<std::byte> memory;
    bool registered;
  };

  // The number of the registered part that this memory lies in, or -1.
  int registered(std::span<std::byte> into) {
    auto part =
        std::ranges::upper_bound(parts_, into.data(), {}, [](const Part& p) { return p.memory.data(); });
    if (part == parts_.begin()) return -1;
    --part;
    if (into.data() + into.size() > part->memory.data() + part->memory.size()) return -1;
    const auto index = static_cast<unsigned>(part - parts_.begin());
    if (!part->registered) {
      const iovec memory{part->memory.data(), part->memory.size()};
      const __u64 tag = 0;
      if (refused_ || io_uring_register_buffers_update_tag(&ring_, index, &memory, &tag, 1) != 1) {
        refused_ = true;  // a limit on locked memory, usually: it will not grow
        return -1;
      }
      part->registered = true;
      registered_bytes_.fetch_add(part->memory.size(), std::memory_order_relaxed);
    }
    return static_cast<int>(index);
  }

  io_uring ring_;
  const size_t depth_;
  size_t in_flight_ = 0;
  std::vector<Part> parts_;  // by address
  bool refused_ = false;
  std::atomic<uint64_t> registered_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ReadQueue> make_uring_queue(size_t depth, std::string& why) {
  io_uring ring{};
  const auto entries = static_cast<unsigned>(depth);
  const int err = io_uring_queue_init(entries, &ring, IORING_SETUP_CLAMP);
  if (err != 0) {
    why = std::strerror(-err);
    return nullptr;
  }
  if (!(ring.features & IORING_FEAT_EXT_ARG)) {  // waiting with a time limit would need an entry of its own
    io_uring_queue_exit(&ring);
    why = "the kernel is older than 5.11";
    return nullptr;
  }
  return std::make_unique<UringQueue>(ring, std::min<size_t>(depth, ring.sq.ring_entries));
}
#else
std::unique_ptr<ReadQueue> make_uring_queue(size_t, std::string& why) {
  why = "this program was built without liburing";
  return nullptr;
}
#endif

}  // namespace moeflux
