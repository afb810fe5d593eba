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
  // Where not null, of one token: the records of experts [rows of small[0]], in device memory, and the mail
  // of `experts`, which is told those of the picks.
  const std::byte* const* records = nullptr;
  std::byte* expert_mail = nullptr;

  // What a later kernel reads of the sequences' states, to be in the L2 cache by then: floats from `at` on.
  struct Ahead {
    const SliceInfo* slices = nullptr;
    size_t n_slices = 0, at = 0, floats = 0;
  } ahead = {};

  // entry_mail bytes for as many rows as small has, aligned to 16, zero before the first call: for calls in
  // one stream.
  std::byte* mail = nullptr;
};

bool entry_can(const Entry& e);
size_t entry_mail(size_t rows);
void enter(const Entry& e, cudaStream_t stream);

}  // namespace moeflux::cuda
