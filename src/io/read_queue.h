// Reads in flight. One thread submits and waits; a queue knows file descriptors and memory, nothing of what
// the bytes mean. A read may come back short, as read(2) may: whoever asked goes on where it ended.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moeflux {

struct ReadRequest {
  int fd = -1;
  uint64_t offset = 0;
  std::span<std::byte> into;
  uint64_t tag = 0;
};

struct ReadDone {
  uint64_t tag = 0;
  int err = 0;       // 0 or an errno
  size_t bytes = 0;  // may be fewer than asked for; none at the end of the file
};

class ReadQueue {
 public:
  virtual ~ReadQueue() = default;  // waits for what is in flight: no read outlives its memory
  virtual std::string_view name() const = 0;
  virtual size_t depth() const = 0;
  // Starts reads in their order; gives how many, fewer when `depth` of them are in flight.
  virtual size_t submit(std::span<const ReadRequest> requests) = 0;
  // What has come back, at least one unless the time is over or nothing is in flight.
  virtual size_t wait(std::span<ReadDone> out, std::chrono::milliseconds timeout) = 0;
  // Memory that will be read into often: reads that lie inside one of its parts then cost less, from the
  // second one on. A part is registered when it is first read into, which takes all of its memory. Where the
  // system does not allow it, reads work all the same.
  virtual void register_memory(std::span<const std::span<std::byte>> parts);
  virtual uint64_t registered_bytes() const;  // so far; any thread may ask
};

// Threads that call pread: works everywhere.
std::unique_ptr<ReadQueue> make_pread_queue(size_t depth);
// io_uring; null where this program or this system does not have it, and `why` then says so.
std::unique_ptr<ReadQueue> make_uring_queue(size_t depth, std::string& why);

std::vector<std::string> read_queue_names();  // auto, uring, pread
// Throws Error{Unsupported} for a queue that cannot be had; auto takes the first that can.
std::unique_ptr<ReadQueue> make_read_queue(std::string_view name, size_t depth);

}  // namespace moeflux
