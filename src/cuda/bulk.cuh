// Copies of whole pieces of device memory into shared memory by the unit for that (compute capability 9 on):
// one thread asks for thousands of bytes, which arrive while threads do other things.
#pragma once

#include <cstdint>

namespace moeflux::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Memory at an address in shared memory: such addresses are short, and loads from them know where they go.
template <class T>
__device__ inline T* in_shared(uint32_t address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Bytes that are expected in shared memory, an mbarrier: init once by one thread, then in turns expect, by
// one thread, copies, and wait by all that read them.
class Arrival {
 public:
  __device__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  __device__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes)
                 : "memory");
  }
  // Addresses and bytes are multiples of 16.
  __device__ void copy(void* to, const void* from, uint32_t bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(address())
        : "memory");
  }
  // round: how many times before this one it has been waited for.
  __device__ void wait(uint32_t round) const {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@!there bra again;\n"
        "}" ::"r"(address()),
        "r"(round & 1)
        : "memory");
  }

 private:
  __device__ uint32_t address() const { return shared_address(&bits_); }
  uint64_t bits_;
};

// Between what threads did with shared memory, or an Arrival's init, and the copies that follow.
__device__ inline void before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

}  // namespace moeflux::cuda
