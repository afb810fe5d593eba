// The CUDA runtime as the backend needs it: handles with one owner each, and errors that say what was tried.
// Light enough for kernels' files: no formatting, no model.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/owned.h"

namespace moeflux::cuda {

// Throws Error{Device | OutOfMemory | Unsupported} with what was tried, the runtime's reason and, where there
// is one, what to do about it.
void check_cuda(cudaError_t result, const char* what);

// After a launch: the error of its configuration, if any.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

struct DeviceInfo {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int n_multiprocessors = 0;
  uint64_t total_bytes = 0, free_bytes = 0;  // of its memory; free: now
  uint64_t l2_bytes = 0;
};

// Makes the first device that can run this program current and describes it. Throws Error{Device} with the
// reason where there is none: no driver, no device, an older driver, an architecture without code here.
DeviceInfo open_device();

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Uninitialised. Throws Error{OutOfMemory} naming `what`, its size and what is free.
  DeviceBuffer(size_t bytes, const char* what);
  DeviceBuffer(DeviceBuffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~DeviceBuffer();

  size_t size() const { return size_; }
  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Host memory that the device can read and write at its own address while kernels run.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(size_t bytes, const char* what);
  PinnedBuffer(PinnedBuffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~PinnedBuffer();

  size_t size() const { return size_; }
  template <class T = std::byte>
  T* as() const {  // the same address on host and device
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Memory of others, made fit for copies in the background for as long as this lives.
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(void* data, size_t bytes, const char* what);
  PinnedRange(PinnedRange&& o) noexcept : data_(std::exchange(o.data_, nullptr)) {}
  PinnedRange& operator=(PinnedRange&& o) noexcept {
    std::swap(data_, o.data_);
    return *this;
  }
  ~PinnedRange();

 private:
  void* data_ = nullptr;
};

struct StreamTraits {
  using Handle = cudaStream_t;
  static constexpr Handle null = nullptr;
  static void release(Handle h) noexcept { cudaStreamDestroy(h); }
};
struct EventTraits {
  using Handle = cudaEvent_t;
  static constexpr Handle null = nullptr;
  static void release(Handle h) noexcept { cudaEventDestroy(h); }
};
struct GraphTraits {
  using Handle = cudaGraphExec_t;
  static constexpr Handle null = nullptr;
  static void release(Handle h) noexcept { cudaGraphExecDestroy(h); }
};
using Stream = Owned<StreamTraits>;
using Event = Owned<EventTraits>;
using Graph = Owned<GraphTraits>;

Stream make_stream();
Event make_event();        // without a time: cheaper to record and to wait for
Event make_timed_event();  // for cudaEventElapsedTime

}  // namespace moeflux::cuda
