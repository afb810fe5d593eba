#include "convert/published_names.h"

#include "base/error.h"
#include "base/json.h"

namespace moeflux {
namespace {

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

bool is_block_sparse(const ModelConfig& m) { return m.family == "mixtral" || m.family == "minimax_m2"; }

}  // namespace

std::string published_moe_prefix(const ModelConfig& m) {
  return is_block_sparse(m) ? "block_sparse_moe." : "mlp.";
}

std::string published_name(const ModelConfig& m, const std::string& name) {
  std::string n = name;
  if (is_block_sparse(m)) {
    n = replaced(n, ".mlp.", ".block_sparse_moe.");
    n = replaced(n, "gate.e_score_correction_bias", "e_score_correction_bias");
  }
  if (m.family == "gpt_oss") n = replaced(n, "mlp.gate", "mlp.router");
  if (!m.moe.shared_gated) n = replaced(n, ".shared_expert.", ".shared_experts.");
  return replaced(n, ".kv_a_proj", ".kv_a_proj_with_mqa");
}

bool has_weight_suffix(const std::string& name) {
  for (const char* bare : {".bias", "e_score_correction_bias", ".A_log", ".dt_bias", ".sinks"})
    if (name.ends_with(bare)) return false;
  return true;
}

std::map<std::string, std::vector<uint64_t>> published_tensors(const ModelConfig& m, const Json& config) {
  const std::string prefix = config.contains("text_config") ? "model.language_model." : "model.";
  std::map<std::string, std::vector<uint64_t>> out;
  for (const TensorSpec& spec : resident_schema(m, {})) {
    std::string n = spec.name;
    std::vector<uint64_t> shape = spec.matrix ? std::vector{spec.rows, spec.cols} : std::vector{spec.cols};
    if (n.ends_with("conv1d")) shape = {spec.rows, 1, spec.cols};
    if (n.ends_with("k_up_t")) continue;
    if (n.ends_with("v_up")) {
      n = replaced(n, "v_up", "kv_b_proj");
      shape = {m.attention.n_heads * (m.mla.nope_dim + m.mla.value_dim), m.mla.kv_rank};
    }
    if (m.family == "qwen3_next" && n.find(".in_proj_") != std::string::npos) {
      if (n.ends_with("_z") || n.ends_with("_a")) continue;
      shape[0] = n.ends_with("_b") ? 2 * spec.rows : spec.rows + m.delta.value_channels();
      n = n.ends_with("_b") ? replaced(n, "in_proj_b", "in_proj_ba")
                            : replaced(n, "in_proj_qkv", "in_proj_qkvz");
    }
    n = published_name(m, n);
    if (spec.name != "lm_head") n = prefix + n;
    out[has_weight_suffix(n) ? n + ".weight" : n] = shape;
  }
  const uint64_t e = m.moe.n_experts, width = m.moe.width, d = m.d_model;
  for (const uint64_t l : expert_layers(m, {})) {
    const std::string p = fmt::format("{}layers.{}.{}experts.", prefix, l, published_moe_prefix(m));
    const bool block = is_block_sparse(m);
    if (m.family == "gpt_oss") {
      out[p + "gate_up_proj"] = {e, d, 2 * width};
      out[p + "gate_up_proj_bias"] = {e, 2 * width};
      out[p + "down_proj"] = {e, width, d};
      out[p + "down_proj_bias"] = {e, d};
    } else if (m.family == "qwen3_5_moe") {
      out[p + "gate_up_proj"] = {e, 2 * width, d};
      out[p + "down_proj"] = {e, d, width};
    } else {
      for (uint64_t i = 0; i < e; ++i) {
        out[fmt::format("{}{}.{}.weight", p, i, block ? "w1" : "gate_proj")] = {width, d};
        out[fmt::format("{}{}.{}.weight", p, i, block ? "w3" : "up_proj")] = {width, d};
        out[fmt::format("{}{}.{}.weight", p, i, block ? "w2" : "down_proj")] = {d, width};
      }
    }
  }
  return out;
}

}  // namespace moeflux
