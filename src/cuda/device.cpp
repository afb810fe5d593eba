#include "cuda/device.h"

#include "base/error.h"
#include "base/text.h"

namespace moeflux::cuda {
namespace {

constexpr int kLeastMajor = 8;  // bf16 and asynchronous copies

std::string driver_versions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return fmt::format("the driver supports CUDA {}.{}, this program was built with {}.{}", driver / 1000,
                     driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

[[noreturn]] void fail_memory(const char* what, size_t bytes, const char* where) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  fail(Errc::OutOfMemory, "{}: {} of {} cannot be had; of the device's {}, {} are free{}", what,
       format_bytes(bytes), where, format_bytes(total), format_bytes(free),
       " (a smaller --vram, --ctx or --chunk needs less)");
}

}  // namespace

void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) [[likely]]
    return;
  const char* reason = cudaGetErrorString(result);
  switch (result) {
    case cudaErrorMemoryAllocation:
      fail_memory(what, 0, "device memory");
    case cudaErrorInsufficientDriver:
      fail(Errc::Device, "{}: {} ({}; update the driver)", what, reason, driver_versions());
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      fail(Errc::Device, "{}: {} (build with -DCMAKE_CUDA_ARCHITECTURES for this device; {})", what, reason,
           driver_versions());
    default:
      fail(Errc::Device, "{}: {} ({})", what, reason, cudaGetErrorName(result));
  }
}

DeviceInfo open_device() {
  int n = 0;
  const cudaError_t result = cudaGetDeviceCount(&n);
  if (result == cudaErrorInsufficientDriver)
    fail(Errc::Device, "no CUDA device can be used: there is no driver, or it is too old ({})",
         driver_versions());
  if (result == cudaErrorNoDevice || (result == cudaSuccess && n == 0))
    fail(Errc::Device, "there is no CUDA device on this machine");
  check_cuda(result, "counting CUDA devices");
  check_cuda(cudaSetDevice(0), "opening CUDA device 0");
  cudaDeviceProp p{};
  check_cuda(cudaGetDeviceProperties(&p, 0), "properties of CUDA device 0");
  if (p.major < kLeastMajor)
    fail(Errc::Device, "{} has compute capability {}.{}, at least {}.0 is needed", p.name, p.major, p.minor,
         kLeastMajor);
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "memory of CUDA device 0");
  return {.index = 0,
          .name = p.name,
          .major = p.major,
          .minor = p.minor,
          .n_multiprocessors = p.multiProcessorCount,
          .total_bytes = total,
          .free_bytes = free,
          .l2_bytes = static_cast<uint64_t>(p.l2CacheSize)};
}

DeviceBuffer::DeviceBuffer(size_t bytes, const char* what) : size_(bytes) {
  if (bytes == 0) return;
  const cudaError_t result = cudaMalloc(&data_, bytes);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is reported here; the next launch is not to blame
    fail_memory(what, bytes, "device memory");
  }
  check_cuda(result, what);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_) cudaFree(data_);
}

PinnedBuffer::PinnedBuffer(size_t bytes, const char* what) : size_(bytes) {
  if (bytes == 0) return;
  const cudaError_t result = cudaHostAlloc(&data_, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail(Errc::OutOfMemory, "{}: {} of pinned memory cannot be had", what, format_bytes(bytes));
  }
  check_cuda(result, what);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_) cudaFreeHost(data_);
}

PinnedRange::PinnedRange(void* data, size_t bytes, const char* what) : data_(data) {
  check_cuda(cudaHostRegister(data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable), what);
}

PinnedRange::~PinnedRange() {
  if (data_) cudaHostUnregister(data_);
}

Stream make_stream() {
  cudaStream_t s = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "making a stream");
  return Stream(s);
}

namespace {
Event event_with(unsigned flags) {
  cudaEvent_t e = nullptr;
  check_cuda(cudaEventCreateWithFlags(&e, flags), "making an event");
  return Event(e);
}
}  // namespace

Event make_event() { return event_with(cudaEventDisableTiming); }
Event make_timed_event() { return event_with(cudaEventDefault); }

}  // namespace moeflux::cuda
