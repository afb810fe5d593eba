// The io_uring queue: one ring, plain reads, or reads into registered memory where the system lets us
// register it.
#include "io/read_queue.h"

#ifdef MOEFLUX_URING
#include <liburing.h>

#include <algorithm>
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

  bool register_memory(std::span<const std::span<std::byte>> memory) override {
    std::vector<iovec> parts;  // the kernel takes at most 1 GiB in one
    for (const auto& m : memory)
      for (size_t at = 0; at < m.size(); at += kPart)
        parts.push_back({m.data() + at, std::min(kPart, m.size() - at)});
    if (io_uring_register_buffers(&ring_, parts.data(), static_cast<unsigned>(parts.size())) != 0)
      return false;
    parts_ = std::move(parts);
    return true;
  }

 private:
  static constexpr size_t kPart = size_t{1} << 30;

  int registered(std::span<std::byte> into) const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const auto* base = static_cast<const std::byte*>(parts_[i].iov_base);
      if (into.data() >= base && into.data() + into.size() <= base + parts_[i].iov_len)
        return static_cast<int>(i);
    }
    return -1;
  }

  io_uring ring_;
  const size_t depth_;
  size_t in_flight_ = 0;
  std::vector<iovec> parts_;
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
