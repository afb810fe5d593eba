// Small vector operations of the CUDA backend: what ops/pointwise.h states, for many vectors at once. Sums
// run over a block's threads, so that they agree with the references within rounding, and their order depends
// on the width only.
#pragma once

#include "cuda/device.h"
#include "cuda/linear.h"
#include "cuda/step_info.h"

namespace moeflux::cuda {

// cosine, sine [n, half] of each token's position.
void rope_table(const TokenInfo* tokens, size_t n, const float* inv_freq, size_t half, float scale,
                float* cosine, float* sine, cudaStream_t stream);

// out[t] = w * x[t] / rms(x[t]), rows of out.cols values x_stride apart; `rows` may name which row of x is
// vector t. Where out has room for it (out.q), the int8 form is made as well.
void rms_norm(const float* x, size_t x_stride, const uint32_t* rows, const float* w, float eps,
              const Vectors& out, cudaStream_t stream);

}  // namespace moeflux::cuda
