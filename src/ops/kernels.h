// All kernels of one instruction set: included by ops_*.cpp after its lanes, once each. Headers that come in
// here hold declarations and constants only.
#pragma once

#include "ops/ops.h"
#include "ops/pointwise.h"
// clang-format off
#include "ops/linear_kernel.h"
#include "ops/pointwise_kernel.h"
#include "ops/attention_kernel.h"
#include "ops/attention_narrow_kernel.h"
#include "ops/delta_kernel.h"
#include "ops/token_weight_kernel.h"
// clang-format on

namespace moeflux::MOEFLUX_ISA {
namespace {

constexpr Ops table(const char* name) {
  return {.name = name,
          .quantise = quantise,
          .remainder = remainder,
          .linear_fast = linear_fast,
          .linear_exact = linear_exact,
          .rms_norm = rms_norm,
          .swiglu = swiglu,
          .clamped_swiglu = clamped_swiglu,
          .sigmoid_gate = sigmoid_gate,
          .silu_gate = silu_gate,
          .add_scaled = add_scaled,
          .scale_to_length = scale_to_length,
          .conv_silu = conv_silu,
          .store_key = store_key,
          .store_value = store_value,
          .attend = attend,
          .attend_narrow = attend_narrow,
          .merge_attention = merge_attention,
          .finish_attention = finish_attention,
          .delta_block = delta_block,
          .block_maxima = block_maxima,
          .block_weights = block_weights,
          .token_weights = token_weights,
          .peak_float = peak_float,
          .peak_int8 = peak_int8,
          .read_memory = read_memory};
}

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
