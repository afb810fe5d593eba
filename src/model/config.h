// What a model is, read from the config.json of its checkpoint: family, shapes and the few switches in which
// the families differ. The engine works from this struct alone; no dimension is a compile-time constant, and
// only the converter asks for the family's name (for the names of published tensors).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"

namespace moeflux {

enum class Mixer : uint8_t { Attention, Mla, DeltaNet };        // how a layer mixes tokens
enum class QkNorm : uint8_t { None, PerHead, WholeVector };     // RMSNorm of q and k before the rotation
enum class Router : uint8_t { Softmax, Sigmoid, TopkSoftmax };  // TopkSoftmax: softmax over the chosen only
enum class Activation : uint8_t { Swiglu, ClampedSwiglu };      // ClampedSwiglu: gpt-oss

struct LayerConfig {
  Mixer mixer = Mixer::Attention;
  uint64_t window = 0;  // keys that a query sees, itself included; 0: all
  bool sparse = true;   // routed experts; otherwise one dense MLP
};

struct RopeConfig {
  uint64_t dim = 0;             // rotated components of a head
  bool interleaved = false;     // pairs (2i, 2i+1); otherwise (i, i + dim/2)
  std::vector<float> inv_freq;  // [dim/2]
  float scale = 1;              // multiplies cos and sin
};

struct AttentionConfig {
  uint64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  QkNorm qk_norm = QkNorm::None;
  bool gated = false;  // q_proj holds query and output gate of each head
  bool qkv_bias = false, o_bias = false, sinks = false;
  float clip_qkv = 0;  // 0: no clipping
  float scale = 1;     // of the scores
};

struct MlaConfig {
  uint64_t q_rank = 0;  // 0: q comes straight from q_proj
  uint64_t kv_rank = 0, nope_dim = 0, rope_dim = 0, value_dim = 0;
  bool bias = false;  // of q_a, kv_a and o
};

struct DeltaConfig {
  uint64_t n_key_heads = 0, n_value_heads = 0, key_dim = 0, value_dim = 0, conv_width = 0;
  uint64_t key_channels() const { return n_key_heads * key_dim; }
  uint64_t value_channels() const { return n_value_heads * value_dim; }
  uint64_t conv_channels() const { return 2 * key_channels() + value_channels(); }
};

struct MoeConfig {
  uint64_t n_experts = 0, top_k = 0, width = 0;
  Router router = Router::Softmax;
  bool router_bias = false;  // added to the logits
  bool score_bias = false;   // added to the scores for choosing only
  bool norm_topk = false;    // divide the chosen weights by their sum (+ norm_eps)
  float norm_eps = 0, scaling = 1;
  uint64_t n_groups = 1, top_groups = 1;
  Activation activation = Activation::Swiglu;
  float clamp = 0;  // ClampedSwiglu's limit
  bool expert_bias = false;
  uint64_t shared_width = 0;  // 0: no shared expert
  bool shared_gated = false;  // sigmoid(gate . h) times the shared expert
};

struct ModelConfig {
  std::string family;  // canonical: qwen3_moe, deepseek_v3, ...
  uint64_t d_model = 0, n_vocab = 0, dense_width = 0, max_position = 0;
  float norm_eps = 1e-6f;
  bool zero_centred_norms = false;  // the checkpoint stores w - 1
  bool tied_embeddings = false;
  std::vector<LayerConfig> layers;
  LayerConfig mtp;  // of the multi-token-prediction layer, where a package has it
  RopeConfig rope;
  AttentionConfig attention;
  MlaConfig mla;
  DeltaConfig delta;
  MoeConfig moe;

  uint64_t n_layers() const { return layers.size(); }
  bool has(Mixer mixer) const;
};

// Parses and validates; throws Error{Corrupt | Unsupported} naming `where`, the field and the numbers.
ModelConfig parse_model_config(const Json& config, const std::string& where);

// The multi-token-prediction layer as a model of its own: what its sequences are made from.
ModelConfig mtp_config(const ModelConfig& model);

// The families that can be run, for messages.
std::string known_families();

// YaRN's m(s, m): 1 for s <= 1, else 0.1 m ln s + 1.
double yarn_mscale(double factor, double m);

}  // namespace moeflux
