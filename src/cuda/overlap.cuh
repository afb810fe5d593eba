// Launches that begin before the kernel ahead of them in the stream has ended, where the device can do that
// (compute capability 9 on): the start of a kernel then hides behind the end of the one before.
//
// A kernel launched so must call wait_for_previous in every thread block, before it exits, writes anything or
// reads what kernels before it write. Before that it may read what is older than the kernel before it began
// to wait itself, and ask for weights.
#pragma once

#include "cuda/device.h"

namespace moeflux::cuda {

__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel, where it is launched so, may begin as multiprocessors have room.
__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Asks for bytes to be in the L2 cache soon; by one thread, a multiple of 16 from an address that is one.
__device__ inline void fetch_ahead(const void* from, size_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(static_cast<uint32_t>(bytes))
               : "memory");
#endif
}

// Asks for the line of an address that is not null to be in the caches soon; by every thread that has one.
__device__ inline void fetch_line(const void* from) {
  if (!from) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}

inline bool overlaps() {  // whether the device can do all this
  static const bool supported = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major >= 9;
  }();
  return supported;
}

template <class... Parameters, class... Arguments>
void launch_overlapped(const char* what, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                       size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlaps() ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

}  // namespace moeflux::cuda
