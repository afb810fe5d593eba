// What a stage begins with, for a few tokens in one launch: the norm, its int8 form, what that leaves over,
// small products that stay in float (a router, the delta net's gates), and the choice of experts. The same
// operations as rms_norm, quantise, quantise_rest, linear (exact) and route; the norm's sum has another
// order.
#pragma once

#include "cuda/linear.h"
#include "cuda/step_info.h"
#include "ops/router.h"

namespace moeflux::cuda {

struct Entry {
  const float* x = nullptr;  // [n, h.cols]
  const float* w = nullptr;  // of the norm
  float eps = 0;
  Vectors h;          // result; quantised where there is room
  Vectors rest = {};  // the int8 form of what h's leaves over, where rest.q is there

  struct Small {
    MatrixView w;
    const float* bias = nullptr;
    float* out = nullptr;  // [n, w.rows]
  };
  Small small[2] = {};  // w null: none

  const RouterRule* rule = nullptr;  // for small[0], the logits; score_bias in device memory
  uint32_t* ids = nullptr;           // [n, top_k]
  float* weights = nullptr;

  // What a later kernel reads of the sequences' states, to be in the L2 cache by then: floats from `at` on.
  struct Ahead {
    const SliceInfo* slices = nullptr;
    size_t n_slices = 0, at = 0, floats = 0;
  } ahead = {};

  float* sums = nullptr;        // entry_sums floats of scratch
  uint32_t* counter = nullptr;  // [1], zero before and after
};

bool entry_can(const Entry& e);
size_t entry_sums(const Entry& e);
void enter(const Entry& e, cudaStream_t stream);

}  // namespace moeflux::cuda
