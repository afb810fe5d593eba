#include "model/weights.h"

#include <map>

#include "base/checked.h"

namespace moeflux {
namespace {

SchemaOptions options_of(const Manifest& manifest) {
  SchemaOptions options;
  options.mla_key_transposed = false;
  for (const ResidentTensor& r : manifest.resident) {
    if (r.tensor.name == "layers.0.self_attn.k_up_t") options.mla_key_transposed = true;
    if (r.tensor.name == "mtp.fc") options.mtp = true;
  }
  return options;
}

void match_tensor(const StoredTensor& have, const TensorSpec& want, const std::string& where) {
  if (have.rows != want.rows || have.cols != want.cols)
    fail(Errc::Corrupt, "{}: {} has shape [{}, {}], config.json makes it [{}, {}]", where, have.name,
         have.rows, have.cols, want.rows, want.cols);
  if (have.tiled != want.matrix)
    fail(Errc::Corrupt, "{}: {} is stored as {}, want {}", where, have.name,
         have.tiled ? to_string(have.format) : "plain-f32", want.matrix ? "a matrix in tiles" : "plain-f32");
}

void match_layer(const ExpertLayer& layer, const std::vector<TensorSpec>& parts, const ModelConfig& model,
                 const std::string& where) {
  const std::string place = fmt::format("{}: experts of layer {}", where, layer.layer);
  if (layer.n_experts() != model.moe.n_experts)
    fail(Errc::Corrupt, "{}: {} of them, config.json has {}", place, layer.n_experts(), model.moe.n_experts);
  if (layer.parts.size() != parts.size())
    fail(Errc::Corrupt, "{}: {} parts, want {}", place, layer.parts.size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (layer.parts[i].name != parts[i].name)
      fail(Errc::Corrupt, "{}: part {} is '{}', want '{}'", place, i, layer.parts[i].name, parts[i].name);
    match_tensor(layer.parts[i], parts[i], place);
  }
}

class Binder {
 public:
  Binder(const ModelConfig& model, const Manifest& manifest, const ResidentWeights& resident)
      : model_(model), resident_(resident) {
    for (const ResidentTensor& r : manifest.resident) tensors_[r.tensor.name] = &r.tensor;
  }

  ModelWeights bind() {
    ModelWeights w;
    w.embedding = matrix("embed_tokens");
    w.head = model_.tied_embeddings ? w.embedding : matrix("lm_head");
    w.final_norm = vector("norm");
    for (uint64_t l = 0; l < model_.n_layers(); ++l) w.layers.push_back(layer(l, model_.layers[l]));
    if (tensors_.contains("mtp.fc")) {
      w.mtp = {matrix("mtp.fc"), vector("mtp.pre_fc_norm_embedding"), vector("mtp.pre_fc_norm_hidden"),
               vector("mtp.norm"), layer(model_.n_layers(), model_.mtp)};
      w.mtp->layer.index = 0;  // its sequences hold nothing else
    }
    return w;
  }

 private:
  MatrixView matrix(const std::string& name) {  // empty where there is none
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return {};
    return {resident_.find(name), it->second->format, it->second->rows, it->second->cols};
  }
  Vector vector(const std::string& name) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return {};
    return {reinterpret_cast<const float*>(resident_.find(name)), it->second->rows * it->second->cols};
  }
  Linear linear(const std::string& name) { return {matrix(name), vector(name + ".bias")}; }
  MlpWeights mlp(const std::string& p) {
    return {linear(p + "gate_proj"), linear(p + "up_proj"), linear(p + "down_proj")};
  }

  LayerWeights layer(uint64_t l, const LayerConfig& config) {
    const std::string p = layer_prefix(model_, l), a = p + "self_attn.", d = p + "linear_attn.",
                      m = p + "mlp.";
    LayerWeights w;
    w.index = w.store_layer = l;
    w.config = &config;
    w.attn_norm = vector(p + "input_layernorm");
    w.mlp_norm = vector(p + "post_attention_layernorm");
    if (w.config->mixer == Mixer::Attention)
      w.attention = {linear(a + "q_proj"), linear(a + "k_proj"), linear(a + "v_proj"), linear(a + "o_proj"),
                     vector(a + "q_norm"), vector(a + "k_norm"), vector(a + "sinks")};
    if (w.config->mixer == Mixer::Mla)
      w.mla = {linear(a + "q_a_proj"), linear(a + "q_b_proj"),      linear(a + "kv_a_proj"),
               linear(a + "o_proj"),   vector(a + "q_a_layernorm"), vector(a + "kv_a_layernorm"),
               matrix(a + "q_proj"),   matrix(a + "k_up"),          matrix(a + "k_up_t"),
               matrix(a + "v_up")};
    if (w.config->mixer == Mixer::DeltaNet)
      w.delta = {matrix(d + "in_proj_qkv"), matrix(d + "in_proj_z"), matrix(d + "in_proj_b"),
                 matrix(d + "in_proj_a"),   matrix(d + "out_proj"),  vector(d + "conv1d"),
                 vector(d + "A_log"),       vector(d + "dt_bias"),   vector(d + "norm")};
    if (!w.config->sparse) {
      w.dense = mlp(m);
      return w;
    }
    w.router = linear(m + "gate");
    w.score_bias = vector(m + "gate.e_score_correction_bias");
    w.shared = mlp(m + "shared_expert.");
    w.shared_gate = matrix(m + "shared_expert_gate");
    return w;
  }

  const ModelConfig& model_;
  const ResidentWeights& resident_;
  std::map<std::string, const StoredTensor*> tensors_;
};

}  // namespace

void match_schema(const Manifest& manifest, const ModelConfig& model, const std::string& where) {
  if (manifest.family != model.family)
    fail(Errc::Corrupt, "{}: the manifest says {}, config.json {}", where, manifest.family, model.family);
  const SchemaOptions options = options_of(manifest);
  std::map<std::string, const StoredTensor*> have;
  for (const ResidentTensor& r : manifest.resident) have[r.tensor.name] = &r.tensor;
  for (const TensorSpec& spec : resident_schema(model, options)) {
    const auto it = have.find(spec.name);
    if (it == have.end()) fail(Errc::Corrupt, "{}: tensor {} is missing", where, spec.name);
    match_tensor(*it->second, spec, where);
    have.erase(it);
  }
  if (!have.empty())
    fail(Errc::Corrupt, "{}: tensor {} does not belong to this model", where, have.begin()->first);

  const std::vector<uint64_t> layers = expert_layers(model, options);
  const std::vector<TensorSpec> parts = expert_schema(model);
  for (const uint64_t l : layers) {
    const ExpertLayer* layer = manifest.find_layer(l);
    if (!layer) fail(Errc::Corrupt, "{}: the experts of layer {} are missing", where, l);
    match_layer(*layer, parts, model, where);
  }
  if (manifest.layers.size() != layers.size())
    fail(Errc::Corrupt, "{}: experts for {} layers, config.json has {} with experts", where,
         manifest.layers.size(), layers.size());
}

ModelWeights bind_weights(const ModelConfig& model, const Manifest& manifest,
                          const ResidentWeights& resident) {
  return Binder(model, manifest, resident).bind();
}

MlpWeights bind_expert(const ExpertLayer& layer, std::span<const std::byte> record) {
  const auto matrix = [&](size_t i) {
    const StoredTensor& p = layer.parts[i];
    return MatrixView{record.data() + p.offset, p.format, p.rows, p.cols};
  };
  const auto bias = [&](size_t i) {
    if (i >= layer.parts.size()) return Vector{};
    const StoredTensor& p = layer.parts[i];
    return Vector{reinterpret_cast<const float*>(record.data() + p.offset), p.cols};
  };
  return {{matrix(0), bias(3)}, {matrix(1), bias(4)}, {matrix(2), bias(5)}};
}

}  // namespace moeflux
