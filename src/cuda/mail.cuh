// How thread blocks hear of each other while both run, without a wait for the end of a launch: a packet is
// four bytes and a flag that no launch before has used, so that one load sees whether the bytes are there and
// brings them. Packets lie in memory that is zero before the first launch.
#pragma once

#include <cstdint>

namespace moeflux::cuda {

__device__ inline uint32_t mail_flag(uint32_t launch) { return launch | 1u << 31; }

__device__ inline void send_packet(uint64_t* to, uint32_t flag, uint32_t bytes) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(uint64_t{flag} << 32 | bytes) : "memory");
}

// Two packets, at an address that is a multiple of 16; whether both are there.
__device__ inline bool look_at_packets(const uint64_t* from, uint32_t flag, uint32_t (&bytes)[2]) {
  uint64_t p[2];
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(p[0]), "=l"(p[1])
               : "l"(from)
               : "memory");
  bytes[0] = static_cast<uint32_t>(p[0]);
  bytes[1] = static_cast<uint32_t>(p[1]);
  return p[0] >> 32 == flag && p[1] >> 32 == flag;
}

// The experts of a single token in one launch (token_experts.cu). Where nobody sends them records, they look
// for themselves.
struct ExpertMail {
  static constexpr uint32_t kMostPicks = 32;
  uint32_t next_span, next_block, finished, launch;
  uint32_t unused[28];
  uint64_t records[kMostPicks][2];  // packets: both halves of a pick's record

  __device__ uint64_t* hidden() { return reinterpret_cast<uint64_t*>(this + 1); }
};

}  // namespace moeflux::cuda
