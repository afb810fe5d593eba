// Attention on the GPU: queries, keys and values made ready and appended to the cache, and softmax attention
// over it, by parts of kAttendPart positions that are counted from the start of the sequence. Parts are
// computed side by side or one after the other and merged in order: a query's bits depend on its own keys
// only, not on the batch.
#pragma once

#include "cuda/linear.h"
#include "cuda/step_info.h"
#include "ops/attention.h"

namespace moeflux::cuda {

inline constexpr size_t kAttendPart = 128;
inline constexpr size_t kMostValueDim = 1024;

struct Rope {
  const float *cosine, *sine;  // [n, half]
  size_t half;
  bool interleaved;
};

// q, k and v as their products gave them -> norms, clipping, rotation; q to q_out, k and v to the cache.
struct PrepareHeads {
  size_t n, n_heads, n_kv_heads, dim;
  const float *q, *k, *v;
  size_t q_stride, q_head;       // of q: floats from token to token and from head to head
  const float *q_norm, *k_norm;  // null: no norm
  bool whole;                    // the norms are over all heads
  float* inverse;                // [n, 2] of scratch, for whole
  float eps, clip;               // clip 0: none
  Rope rope;
  const TokenInfo* tokens;
  KvPlace place;
  KvType kv;
  float* q_out;  // [n, n_heads, dim]
};
void prepare_heads(const PrepareHeads& p, cudaStream_t stream);
void whole_inverse(const PrepareHeads& p, cudaStream_t stream);  // its first part, where p.whole: p.inverse

// The same for latent attention: the normed latent and rotated key to the cache; of q, its first part to
// nope [n, heads, nope_dim], its rotated part to absorbed[..][kv_rank..].
struct PrepareLatent {
  size_t n, n_heads, nope_dim, rope_dim, kv_rank;
  const float* q;   // [n, heads, nope_dim + rope_dim]
  const float* kv;  // [n, kv_rank + rope_dim]
  const float* kv_norm;
  float eps;
  Rope rope;
  const TokenInfo* tokens;
  KvPlace place;
  KvType kv_type;
  Vectors nope;     // [n * heads, nope_dim]; quantised as well where there is room
  float* absorbed;  // [n, heads, kv_rank + rope_dim]
};
void prepare_latent(const PrepareLatent& p, cudaStream_t stream);

struct Attend {
  size_t n, n_heads, n_kv_heads, key_dim, value_dim;
  const float* q;  // [n, n_heads, key_dim]
  const TokenInfo* tokens;
  KvPlace place;
  size_t window;  // 0: all
  KvType kv;
  float scale;
  const float* sinks;  // [n_heads] or null
  const float* gate;   // [head_dim] values at gate + t * gate_stride + h * gate_head, or null
  size_t gate_stride, gate_head;
  float* out = nullptr;    // [n, n_heads, value_dim]
  float* parts = nullptr;  // attend_parts_floats; null: parts are computed one after the other
  size_t n_parts = 1;      // that any query here may touch, where parts is not null
};
constexpr size_t attend_parts_floats(size_t n, size_t n_heads, size_t value_dim, size_t n_parts) {
  return n * n_heads * n_parts * (value_dim + 2);
}
void attend(const Attend& a, cudaStream_t stream);

}  // namespace moeflux::cuda
