// Products of small bf16 tiles on tensor cores: one warp, 16 x 16 times 16 x 8. Lane l has of A rows l / 4
// and l / 4 + 8, of B column l / 4, of C rows as A and columns 2 (l % 4) + {0, 1}.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace moeflux::cuda {

__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Of two rows' neighbouring columns (a: row 0, b: row 1): column 0 of both, or column 1 of both.
__device__ inline uint32_t first_of(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ inline uint32_t second_of(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

}  // namespace moeflux::cuda
