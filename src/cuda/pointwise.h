// Small vector operations of the CUDA backend: what ops/pointwise.h states, for many vectors at once. Sums
// run over a block's threads, so that they agree with the references within rounding, and their order depends
// on the width only.
#pragma once

#include "cuda/device.h"
#include "cuda/linear.h"
#include "cuda/step_info.h"
#include "ops/shortlist.h"

namespace moeflux::cuda {

// cosine, sine [n, half] of each token's position.
void rope_table(const TokenInfo* tokens, size_t n, const float* inv_freq, size_t half, float scale,
                float* cosine, float* sine, cudaStream_t stream);

// out[t] = w * x[t] / rms(x[t]), rows of out.cols values x_stride apart; `rows` may name which row of x is
// vector t. Where out has room for it (out.q), the int8 form is made as well.
void rms_norm(const float* x, size_t x_stride, const uint32_t* rows, const float* w, float eps,
              const Vectors& out, cudaStream_t stream);

// Values that the host waits for, to pinned memory, and then a number that it watches: quicker than copies
// and a wait for the stream.
struct Publication {
  const uint32_t* ids = nullptr;
  size_t n_ids = 0;
  const float* values = nullptr;
  size_t n_values = 0;
  const Shortlist* lists = nullptr;
  size_t n_lists = 0;
  uint32_t* ids_to = nullptr;  // pinned, as are the next three
  float* values_to = nullptr;
  Shortlist* lists_to = nullptr;
  uint32_t* told = nullptr;   // becomes *count, when all is there
  uint32_t* count = nullptr;  // in device memory: grows by one
};
void publish(const Publication& p, cudaStream_t stream);

}  // namespace moeflux::cuda
