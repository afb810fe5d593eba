// Arithmetic of the contracts in ops/linear.h and ops/pointwise.h, for kernels. Every operation names its
// rounding, so that no compiler option fuses or approximates one: these are the bits of the CPU.
#pragma once

#include <cuda_fp16.h>

#include "cuda/linear.h"
#include "ops/linear.h"
#include "ops/pointwise.h"

namespace moeflux::cuda {

// -- number formats

__device__ inline float bf16_value(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ inline float f16_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

__device__ inline float e4m3_value(uint32_t b) {
  const uint32_t exponent = b >> 3 & 15, mantissa = b & 7;
  float magnitude = exponent == 0 ? __fmul_rn(static_cast<float>(mantissa), 0x1p-9f)
                                  : __uint_as_float((exponent + 120) << 23 | mantissa << 20);
  if ((b & 0x7f) == 0x7f) magnitude = __uint_as_float(0x7fc00000u);
  return b & 0x80 ? -magnitude : magnitude;
}

__device__ inline float e8m0_value(uint32_t b) {
  return b == 255 ? __uint_as_float(0x7fc00000u) : b == 0 ? 0x1p-127f : __uint_as_float(b << 23);
}

__device__ inline float e2m1_value(uint32_t code) {  // of the low four bits
  const uint32_t m = code & 7;
  const float magnitude =
      m < 2 ? 0.5f * static_cast<float>(m) : __uint_as_float(((m >> 1) + 126) << 23 | (m & 1) << 22);
  return code & 8 ? -magnitude : magnitude;
}

__device__ inline float scale_of_bits(ScaleType type, uint32_t bits) {
  switch (type) {
    case ScaleType::Bf16:
      return bf16_value(bits);
    case ScaleType::F16:
      return f16_value(static_cast<uint16_t>(bits));
    case ScaleType::F32:
      return __uint_as_float(bits);
    case ScaleType::E8m0:
      return e8m0_value(bits);
    default:
      return 1.0f;
  }
}

__device__ inline float scale_value(ScaleType type, const uint8_t* p) {
  switch (type) {
    case ScaleType::Bf16:
    case ScaleType::F16:
      return scale_of_bits(type, *reinterpret_cast<const uint16_t*>(p));
    case ScaleType::F32:
      return scale_of_bits(type, *reinterpret_cast<const uint32_t*>(p));
    default:
      return scale_of_bits(type, *p);
  }
}

// As it lies in device memory that is not written. The request is made here and now, and nothing waits for
// it before its bits are used.
__device__ inline uint32_t request_scale(ScaleType type, const uint8_t* p) {
  uint32_t bits = 0;
  if (type == ScaleType::Bf16 || type == ScaleType::F16)
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=r"(bits) : "l"(p));
  else if (type == ScaleType::F32)
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(p));
  else
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(bits) : "l"(p));
  return bits;
}

// -- activations

__device__ inline float exp_value(float x) {
  x = fminf(fmaxf(x, kExpLow), kExpHigh);
  const float n = rintf(__fmul_rn(x, kLog2E));
  const float r = __fmaf_rn(n, -kLn2Low, __fmaf_rn(n, -kLn2High, x));
  float p = 1.0f / 5040;
  p = __fmaf_rn(p, r, 1.0f / 720);
  p = __fmaf_rn(p, r, 1.0f / 120);
  p = __fmaf_rn(p, r, 1.0f / 24);
  p = __fmaf_rn(p, r, 1.0f / 6);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  return __fmul_rn(p, __int_as_float((static_cast<int>(n) + 127) << 23));
}

__device__ inline float sigmoid_value(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_value(-x))); }
__device__ inline float silu_value(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, exp_value(-x))); }

// clamp 0: silu(gate) * up; else the clamped form with that limit.
__device__ inline float gated_value(float gate, float up, float clamp) {
  if (clamp == 0) return __fmul_rn(silu_value(gate), up);
  const float g = fminf(gate, clamp), u = fminf(fmaxf(up, -clamp), clamp);
  return __fmul_rn(__fadd_rn(u, 1.0f), __fmul_rn(g, sigmoid_value(__fmul_rn(1.702f, g))));
}

// -- int8 form of 64 columns, by half a warp: lane i of 16 holds columns 4i..4i+3 (zeros beyond the vector).
// Returns its four codes; `span` is the same in all lanes. All lanes of the warp must take part.

__device__ inline int pack4(int a, int b, int c, int d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

__device__ inline int quantise_span(float4 x, QuantSpan& span) {
  float most = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
  for (int step = 8; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
  const float inverse = most > 0 ? __fdiv_rn(127.0f, most) : 0.0f;
  const auto code = [&](float v) {
    return __float2int_rn(fminf(fmaxf(__fmul_rn(v, inverse), -127.0f), 127.0f));
  };
  const int a = code(x.x), b = code(x.y), c = code(x.z), d = code(x.w);
  int half = a + b + c + d;
#pragma unroll
  for (int step = 4; step > 0; step /= 2) half += __shfl_xor_sync(0xffffffff, half, step);
  const int other = __shfl_xor_sync(0xffffffff, half, 8);
  const bool low = (threadIdx.x & 8) == 0;
  span.xs = __fdiv_rn(most, 127.0f);
  span.xb = __fmul_rn(span.xs, __int2float_rn(half + other));
  span.xb_half[0] = __fmul_rn(span.xs, __int2float_rn(low ? half : other));
  span.xb_half[1] = __fmul_rn(span.xs, __int2float_rn(low ? other : half));
  return pack4(a, b, c, d);
}

// -- integer products

__device__ inline int dot4_unsigned(uint32_t codes, int x, int sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(codes), "r"(x), "r"(sum));
  return sum;
}

// As __byte_perm, but a selector with its top bit set gives eight copies of the chosen byte's sign.
__device__ inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}

// Doubled e2m1 values, as int8, of the low and the high four bits of each byte.
__device__ inline void e2m1_codes(uint32_t word, int& low, int& high) {
  constexpr uint32_t kFirst = 0x03020100, kLast = 0x0c080604;  // magnitudes of codes 0..3 and 4..7
  // Of codes with the sign, the first permutation gives zero, of the others the second.
  const uint32_t flipped = word ^ 0x88888888u;
  const uint32_t bias = 0x80808080u;
  const auto values = [&](uint32_t positive, uint32_t negative) {
    return (permute(kFirst, kLast, positive) + bias - permute(kFirst, kLast, negative)) ^ bias;
  };
  const uint32_t first = values(word, flipped), last = values(word >> 16, flipped >> 16);
  low = static_cast<int>(__byte_perm(first, last, 0x6420));
  high = static_cast<int>(__byte_perm(first, last, 0x7531));
}

}  // namespace moeflux::cuda
