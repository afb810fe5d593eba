#include "model/schema.h"

#include "base/checked.h"

namespace moeflux {
namespace {

class Builder {
 public:
  explicit Builder(const ModelConfig& model, const SchemaOptions& options) : m_(model), options_(options) {}

  std::vector<TensorSpec> build() {
    matrix("embed_tokens", TensorClass::Embedding, m_.n_vocab, m_.d_model);
    for (uint64_t l = 0; l < m_.n_layers(); ++l) layer(layer_prefix(m_, l), m_.layers[l]);
    if (options_.mtp) mtp();
    vector("norm", TensorClass::Norm, m_.d_model);
    if (!m_.tied_embeddings) matrix("lm_head", TensorClass::Head, m_.n_vocab, m_.d_model);
    return std::move(specs_);
  }

 private:
  void add(std::string name, TensorClass cls, uint64_t rows, uint64_t cols, bool matrix, bool may_narrow) {
    checked_mul(checked_mul(rows, cols, name), 4, name);
    if (in_mtp_) cls = TensorClass::Mtp;
    specs_.push_back({std::move(name), cls, rows, cols, matrix, may_narrow});
  }
  void matrix(const std::string& name, TensorClass cls, uint64_t rows, uint64_t cols,
              bool may_narrow = true) {
    add(name, cls, rows, cols, true, may_narrow);
  }
  void vector(const std::string& name, TensorClass cls, uint64_t n, uint64_t rows = 1) {
    add(name, cls, rows, n, false, false);
  }
  void linear(const std::string& name, TensorClass cls, uint64_t rows, uint64_t cols, bool bias) {
    matrix(name, cls, rows, cols);
    if (bias) vector(name + ".bias", cls, rows);
  }
  void mlp(const std::string& p, TensorClass cls, uint64_t width) {
    matrix(p + "gate_proj", cls, width, m_.d_model);
    matrix(p + "up_proj", cls, width, m_.d_model);
    matrix(p + "down_proj", cls, m_.d_model, width);
  }

  void layer(const std::string& p, const LayerConfig& layer) {
    vector(p + "input_layernorm", TensorClass::Norm, m_.d_model);
    switch (layer.mixer) {
      case Mixer::Attention:
        attention(p + "self_attn.");
        break;
      case Mixer::Mla:
        mla(p + "self_attn.");
        break;
      case Mixer::DeltaNet:
        delta(p + "linear_attn.");
        break;
    }
    vector(p + "post_attention_layernorm", TensorClass::Norm, m_.d_model);
    if (layer.sparse)
      moe(p + "mlp.");
    else
      mlp(p + "mlp.", TensorClass::Dense, m_.dense_width);
  }

  void attention(const std::string& p) {
    const AttentionConfig& a = m_.attention;
    const uint64_t q = a.n_heads * a.head_dim, kv = a.n_kv_heads * a.head_dim;
    const auto cls = TensorClass::Attention;
    linear(p + "q_proj", cls, a.gated ? 2 * q : q, m_.d_model, a.qkv_bias);
    linear(p + "k_proj", cls, kv, m_.d_model, a.qkv_bias);
    linear(p + "v_proj", cls, kv, m_.d_model, a.qkv_bias);
    linear(p + "o_proj", cls, m_.d_model, q, a.o_bias);
    if (a.qk_norm != QkNorm::None) {
      const bool whole = a.qk_norm == QkNorm::WholeVector;
      vector(p + "q_norm", TensorClass::Norm, whole ? q : a.head_dim);
      vector(p + "k_norm", TensorClass::Norm, whole ? kv : a.head_dim);
    }
    if (a.sinks) vector(p + "sinks", cls, a.n_heads);
  }

  void mla(const std::string& p) {
    const MlaConfig& a = m_.mla;
    const auto cls = TensorClass::Attention;
    const uint64_t heads = m_.attention.n_heads, q = heads * (a.nope_dim + a.rope_dim);
    if (a.q_rank) {
      linear(p + "q_a_proj", cls, a.q_rank, m_.d_model, a.bias);
      vector(p + "q_a_layernorm", TensorClass::Norm, a.q_rank);
      matrix(p + "q_b_proj", cls, q, a.q_rank);
    } else {
      matrix(p + "q_proj", cls, q, m_.d_model);
    }
    linear(p + "kv_a_proj", cls, a.kv_rank + a.rope_dim, m_.d_model, a.bias);
    vector(p + "kv_a_layernorm", TensorClass::Norm, a.kv_rank);
    if (options_.mla_key_transposed)
      matrix(p + "k_up_t", cls, heads * a.kv_rank, a.nope_dim);
    else
      matrix(p + "k_up", cls, heads * a.nope_dim, a.kv_rank);
    matrix(p + "v_up", cls, heads * a.value_dim, a.kv_rank);
    linear(p + "o_proj", cls, m_.d_model, heads * a.value_dim, a.bias);
  }

  void delta(const std::string& p) {
    const DeltaConfig& d = m_.delta;
    const auto cls = TensorClass::Attention;
    matrix(p + "in_proj_qkv", cls, d.conv_channels(), m_.d_model);
    matrix(p + "in_proj_z", cls, d.value_channels(), m_.d_model);
    matrix(p + "in_proj_b", cls, d.n_value_heads, m_.d_model);
    matrix(p + "in_proj_a", cls, d.n_value_heads, m_.d_model);
    vector(p + "conv1d", cls, d.conv_width, d.conv_channels());
    vector(p + "A_log", cls, d.n_value_heads);
    vector(p + "dt_bias", cls, d.n_value_heads);
    vector(p + "norm", TensorClass::Norm, d.value_dim);
    matrix(p + "out_proj", cls, m_.d_model, d.value_channels());
  }

  void moe(const std::string& p) {
    const MoeConfig& e = m_.moe;
    matrix(p + "gate", TensorClass::Router, e.n_experts, m_.d_model, false);
    if (e.router_bias) vector(p + "gate.bias", TensorClass::Router, e.n_experts);
    if (e.score_bias) vector(p + "gate.e_score_correction_bias", TensorClass::Router, e.n_experts);
    if (e.shared_width) mlp(p + "shared_expert.", TensorClass::SharedExpert, e.shared_width);
    if (e.shared_gated) matrix(p + "shared_expert_gate", TensorClass::Router, 1, m_.d_model, false);
  }

  void mtp() {
    in_mtp_ = true;
    matrix("mtp.fc", TensorClass::Mtp, m_.d_model, 2 * m_.d_model);
    vector("mtp.pre_fc_norm_embedding", TensorClass::Mtp, m_.d_model);
    vector("mtp.pre_fc_norm_hidden", TensorClass::Mtp, m_.d_model);
    vector("mtp.norm", TensorClass::Mtp, m_.d_model);
    layer(layer_prefix(m_, m_.n_layers()), m_.mtp);
    in_mtp_ = false;
  }

  const ModelConfig& m_;
  const SchemaOptions& options_;
  std::vector<TensorSpec> specs_;
  bool in_mtp_ = false;
};

}  // namespace

const char* to_string(TensorClass cls) {
  constexpr const char* kNames[] = {"embedding", "norms",   "attention", "router", "shared experts",
                                    "dense mlp", "experts", "head",      "mtp"};
  static_assert(std::size(kNames) == kTensorClasses);
  return kNames[static_cast<size_t>(cls)];
}

std::vector<TensorSpec> resident_schema(const ModelConfig& model, const SchemaOptions& options) {
  return Builder(model, options).build();
}

std::vector<TensorSpec> expert_schema(const ModelConfig& m) {
  const uint64_t width = m.moe.width, d = m.d_model;
  std::vector<TensorSpec> parts = {{"gate", TensorClass::Expert, width, d, true, true},
                                   {"up", TensorClass::Expert, width, d, true, true},
                                   {"down", TensorClass::Expert, d, width, true, true}};
  if (m.moe.expert_bias) {
    parts.push_back({"gate_bias", TensorClass::Expert, 1, width, false, false});
    parts.push_back({"up_bias", TensorClass::Expert, 1, width, false, false});
    parts.push_back({"down_bias", TensorClass::Expert, 1, d, false, false});
  }
  return parts;
}

std::vector<uint64_t> expert_layers(const ModelConfig& model, const SchemaOptions& options) {
  std::vector<uint64_t> layers;
  for (uint64_t l = 0; l < model.n_layers(); ++l)
    if (model.layers[l].sparse) layers.push_back(l);
  if (options.mtp) layers.push_back(model.n_layers());
  return layers;
}

std::string layer_prefix(const ModelConfig& model, uint64_t layer) {
  return layer < model.n_layers() ? fmt::format("layers.{}.", layer)
                                  : fmt::format("mtp.layers.{}.", layer - model.n_layers());
}

}  // namespace moeflux
