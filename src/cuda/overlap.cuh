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

inline bool overlaps() {  // whether the device can do all this
  static const bool supported = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major >= 9;
  }();
  return supported;
}

// cluster: so many neighbouring blocks of threads run side by side and see each other's shared memory; only
// where overlaps().
template <class... Parameters, class... Arguments>
void launch_overlapped(const char* what, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                       size_t shared_bytes, unsigned cluster, cudaStream_t stream,
                       const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !overlaps() ? 0 : cluster > 1 ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

template <class... Parameters, class... Arguments>
void launch_overlapped(const char* what, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                       size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  launch_overlapped(what, kernel, grid, threads, shared_bytes, 1u, stream, arguments...);
}

}  // namespace moeflux::cuda
