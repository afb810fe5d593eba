// The gated delta rule of one value head, in blocks of kDeltaBlock tokens that are fixed by position, so that
// a token's bits do not depend on how a prompt was cut: the state S [key_dim, value_dim] is the one at the
// start of the block, and the block's tokens so far are kept beside it.
//
//   token i of the block (i ascending), decay g <= 0, G_i = g_0 + .. + g_i, D_ij = exp(G_i - G_j):
//     Vn_i = beta_i (v_i - exp(G_i) S^T k_i - sum_{j<i} D_ij (k_i . k_j) Vn_j)
//     o_i  = exp(G_i) S^T q_i + sum_{j<=i} D_ij (q_i . k_j) Vn_j
//   after the last:  S = exp(G) S + sum_j exp(G - G_j) k_j Vn_j^T
//
// This is the recurrence S = e^g S; S += k (beta (v - S^T k))^T; o = S^T q, unrolled over the block. Cutting
// tokens off the block's end needs no other state.
#pragma once

#include <cstddef>
#include <span>

namespace moeflux {

inline constexpr size_t kDeltaBlock = 64;

struct DeltaHead {
  size_t key_dim, value_dim;
  float* state;   // [key_dim, value_dim]
  float* keys;    // [key_dim, kDeltaBlock]: the block's k_j, one per column
  float* values;  // [kDeltaBlock, value_dim]: the block's Vn_j
  float* decay;   // [kDeltaBlock]: the block's G_j
};

// Token `index` of the block (0 <= index < kDeltaBlock; all smaller ones were given before). q is scaled, q
// and k have unit length. out [value_dim]. Folds the block into the state when it is full.
void delta_step_ref(const DeltaHead& head, size_t index, const float* q, const float* k, const float* v,
                    float beta, float g, float* out);

// Tokens of one head for the kernels of ops.h: rows `stride` floats apart, q scaled, q and k of unit length.
struct DeltaTokens {
  const float *q, *k, *v;
  size_t qk_stride, v_stride;
  const float *beta, *g;
  float* out;
  size_t out_stride;
};

// Floats of scratch for `count` tokens of a block.
constexpr size_t delta_scratch(size_t value_dim) { return 2 * kDeltaBlock * value_dim + 4 * kDeltaBlock; }

}  // namespace moeflux
