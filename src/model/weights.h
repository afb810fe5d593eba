// The resident tensors of a package bound to their places in the model. Views point into the buffer of
// ResidentWeights, which must outlive them. Binding refuses anything missing, surplus or of another shape.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/schema.h"
#include "package/package.h"

namespace moeflux {

using Vector = std::span<const float>;

struct Linear {
  MatrixView w;
  Vector bias;  // empty: none
};

struct AttentionWeights {
  Linear q, k, v, o;
  Vector q_norm, k_norm, sinks;
};

struct MlaWeights {
  Linear q_a, q_b, kv_a, o;
  Vector q_a_norm, kv_a_norm;
  MatrixView q;             // in place of q_a and q_b where there is no q rank
  MatrixView k_up, k_up_t;  // one of the two: [heads * nope_dim, kv_rank] or [heads * kv_rank, nope_dim]
  MatrixView v_up;          // [heads * value_dim, kv_rank]
};

struct DeltaWeights {
  MatrixView qkv, z, b, a, out;
  Vector conv;  // [channels, conv_width]
  Vector a_log, dt_bias, norm;
};

struct MlpWeights {
  Linear gate, up, down;
};

struct LayerWeights {
  uint64_t index = 0;        // its place in a sequence
  uint64_t store_layer = 0;  // the store's number for it: index, but for the multi-token-prediction layer
  const LayerConfig* config = nullptr;
  Vector attn_norm, mlp_norm;
  AttentionWeights attention;  // of the three, the one that config->mixer names is filled
  MlaWeights mla;
  DeltaWeights delta;
  MlpWeights dense;  // where not config->sparse
  Linear router;
  Vector score_bias;
  MlpWeights shared;  // where there is a shared expert
  MatrixView shared_gate;
};

// A layer that guesses the token after the next one: from the next token and what the model's final norm gave
// for the token before it. It shares embedding and head with the model.
struct MtpWeights {
  MatrixView fc;  // [d_model, 2 * d_model]: of the embedding, then of the final norm
  Vector embedding_norm, hidden_norm, norm;
  LayerWeights layer;
};

struct ModelWeights {
  MatrixView embedding, head;
  Vector final_norm;
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp = {};
};

// Checks the package against the schema of its config: every tensor, its shape, and that matrices are
// matrices.
void match_schema(const Manifest& manifest, const ModelConfig& model, const std::string& where);

ModelWeights bind_weights(const ModelConfig& model, const Manifest& manifest,
                          const ResidentWeights& resident);

// The three matrices of an expert inside its record.
MlpWeights bind_expert(const ExpertLayer& layer, std::span<const std::byte> record);

}  // namespace moeflux
