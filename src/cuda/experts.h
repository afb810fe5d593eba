// The feed-forward part on the GPU: routed experts where their records lie, dense parts and shared experts.
// y = down(act(gate x, up x)), with the bits of the CPU's; sums run in routing order.
//
// As in linear.h: device pointers, nothing allocated, nothing waited for.
#pragma once

#include "cuda/linear.h"

namespace moeflux {
struct MlpWeights;
}

namespace moeflux::cuda {

// Where the parts lie from the start of a record on: the same for all experts of a layer.
struct ExpertLayout {
  struct Part {
    MatrixFormat format;
    size_t rows = 0, cols = 0;
    ptrdiff_t offset = 0;
    ptrdiff_t bias = kNone;  // offset of its floats
  };
  static constexpr ptrdiff_t kNone = PTRDIFF_MAX;
  Part gate, up, down;
  float clamp = 0;  // 0: silu(gate) * up; else the clamped activation of ops/pointwise.h with this limit
};

// Offsets are from w.gate.w.data on: that pointer, in device memory, is then the record.
ExpertLayout expert_layout(const MlpWeights& w, float clamp = 0);

// A layer's experts and a batch's picks. Pick t * top_k + j is token t's j-th choice.
struct ExpertWork {
  ExpertLayout layout;
  bool exact = false;
  Vectors x;  // [n, d_model]: for fast quantised, else floats
  size_t top_k = 0, n_experts = 0;
  const uint32_t* ids = nullptr;   // [n, top_k]
  const float* weights = nullptr;  // [n, top_k]
  std::byte* scratch =
      nullptr;  // experts_scratch bytes, aligned to 256; kept from the first call to the last
  // experts_mail bytes, aligned to 256, zero before the first call: `experts` of one token may then need a
  // single launch. For calls in one stream, between any two of which another kernel runs that waits for the
  // first. Null: it needs more launches.
  std::byte* mail = nullptr;
  // An Entry has been given this mail and the records, where hears_choice: they need not be looked for.
  bool told = false;
  // A shared expert that `experts` computes on the way, where can_join: its record (null: none) and where its
  // parts lie in it.
  const std::byte* shared = nullptr;
  ExpertLayout shared_layout = {};
};
// Whether a shared expert of this layout can be computed together with the others.
bool can_join(const ExpertWork& work, const ExpertLayout& shared);
// Whether `experts` can be told of the choice while the launch that makes it is still running.
bool hears_choice(const ExpertWork& work);
// For batches of up to n tokens.
size_t experts_scratch(const ExpertLayout& layout, size_t n, size_t top_k, size_t n_experts, bool exact);
size_t experts_mail(const ExpertLayout& layout, size_t top_k);

// What the picks' results are added to, and what else is added.
struct ExpertSum {
  float* x = nullptr;  // [n, d_model], rows x_stride apart: the residual stream
  size_t x_stride = 0;
  const float* shared = nullptr;       // [n, d_model]: a shared expert's result, if it has been computed
  const float* shared_gate = nullptr;  // [n]: its weight is the sigmoid of this; null: one
};

// records: [n_experts], read when the launch runs: an expert's record, or null. In device memory; for
// portions it may be pinned memory of the host.
//
// All experts there: x += sum_j weight_j * expert_j(x) (+ shared). For one token one launch or two.
void experts(const ExpertWork& work, const std::byte* const* records, const ExpertSum& sum,
             cudaStream_t stream);
// Experts in portions: group once, compute for every portion of experts (those whose record is null are left
// out; over all portions each chosen expert must be there exactly once), combine once.
void group_experts(const ExpertWork& work, cudaStream_t stream);
void compute_experts(const ExpertWork& work, const std::byte* const* records, cudaStream_t stream);
// Picks that were computed elsewhere, and so have no record in any portion.
struct Elsewhere {
  static constexpr size_t kMostPicks = 64;
  static constexpr uint8_t kNot = 255;
  const float* results =
      nullptr;                   // [rows, d_model], in memory that the device can read; null: there are none
  uint8_t row[kMostPicks] = {};  // of each pick's result; kNot: it was computed here
};
void combine_experts(const ExpertWork& work, const ExpertSum& sum, const Elsewhere& elsewhere,
                     cudaStream_t stream);

// One feed-forward part for all tokens, as of dense layers and shared experts: out = y, or out += y.
struct Mlp {
  ExpertLayout layout;
  const std::byte* record = nullptr;
  bool exact = false, add = false;
  Vectors x;
  float* out = nullptr;
  size_t out_stride = 0;
  std::byte* scratch = nullptr;  // mlp_scratch bytes, aligned to 256
};
size_t mlp_scratch(const ExpertLayout& layout, size_t n, bool exact);
void mlp(const Mlp& p, cudaStream_t stream);

}  // namespace moeflux::cuda
