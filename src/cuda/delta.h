// The gated delta net on the GPU: causal convolution, gates, the delta rule token by token with the state in
// registers, norm and output gate. The recurrence is the one of ops/delta.h; a token's bits do not depend on
// how a prompt was cut, since tokens follow each other.
#pragma once

#include "cuda/linear.h"
#include "cuda/step_info.h"

namespace moeflux::cuda {

inline constexpr size_t kMostDeltaKeyDim = 256;

struct DeltaNet {
  size_t n, n_key_heads, n_value_heads, key_dim, value_dim, conv_width;
  const SliceInfo* slices;
  size_t n_slices;
  size_t past, state;      // where in a slice's state: [conv_width - 1][channels], [head][key_dim][value_dim]
  const float* u;          // [n, channels]: q, k, v before the convolution
  const float *z, *b, *a;  // [n, value channels], [n, value heads] twice
  size_t z_stride, ba_stride;    // floats from token to token
  const float* conv;             // [channels, conv_width]
  const float *a_log, *dt_bias;  // [value heads]
  const float* norm;             // [value_dim]
  float eps, unit_eps;
  float* mixed;  // [n, channels] of scratch: after the convolution
  float* out;    // [n, value channels] of scratch: after the delta rule
  Vectors y;     // [n, value channels]: normed and gated
  // [n_slices * n_key_heads], zero before and after: slices of single tokens may then need one launch. Null:
  // they need more.
  uint32_t* counters = nullptr;

  constexpr size_t channels() const { return 2 * n_key_heads * key_dim + n_value_heads * value_dim; }
};

void delta_net(const DeltaNet& d, cudaStream_t stream);

}  // namespace moeflux::cuda
