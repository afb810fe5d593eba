// Models that no test machine can hold: headers of every published shape over sparse files, in their
// published formats, must pass inspect, plan and convert --dry-run with the right sizes.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "convert/published_names.h"
#include "support/checkpoint_builder.h"

namespace moeflux {
namespace {

enum class Stored { Bf16, Fp8, Mxfp4, Int4Experts };

struct Published {
  const char* name;
  Stored stored;
  double total, active;      // parameters, in billions
  uint64_t q4_record_bytes;  // one expert at 4 bits, group 64
  Json config;
};

void PrintTo(const Published& p, std::ostream* out) { *out << p.name; }

Json qwen3(int h, int layers, int heads, int kv, int experts, int width, double theta, int positions) {
  return {{"model_type", "qwen3_moe"},
          {"hidden_size", h},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv},
          {"head_dim", 128},
          {"num_experts", experts},
          {"num_experts_per_tok", 8},
          {"moe_intermediate_size", width},
          {"intermediate_size", 6144},
          {"norm_topk_prob", true},
          {"vocab_size", 151936},
          {"rope_theta", theta},
          {"rope_scaling", nullptr},
          {"max_position_embeddings", positions},
          {"rms_norm_eps", 1e-6},
          {"decoder_sparse_step", 1},
          {"mlp_only_layers", Json::array()},
          {"sliding_window", nullptr},
          {"use_sliding_window", false},
          {"tie_word_embeddings", false}};
}

Json qwen_next(double theta) {
  return {{"model_type", "qwen3_next"},
          {"hidden_size", 2048},
          {"num_hidden_layers", 48},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 2},
          {"head_dim", 256},
          {"num_experts", 512},
          {"num_experts_per_tok", 10},
          {"moe_intermediate_size", 512},
          {"shared_expert_intermediate_size", 512},
          {"intermediate_size", 5120},
          {"vocab_size", 151936},
          {"rope_theta", theta},
          {"partial_rotary_factor", 0.25},
          {"max_position_embeddings", 262144},
          {"rms_norm_eps", 1e-6},
          {"linear_num_key_heads", 16},
          {"linear_num_value_heads", 32},
          {"linear_key_head_dim", 128},
          {"linear_value_head_dim", 128},
          {"linear_conv_kernel_dim", 4},
          {"full_attention_interval", 4},
          {"norm_topk_prob", true}};
}

Json qwen35(int h, int layers, int heads, int value_heads, int experts, int k, int width) {
  Json types = Json::array();
  for (int l = 0; l < layers; ++l) types.push_back(l % 4 == 3 ? "full_attention" : "linear_attention");
  return {{"model_type", "qwen3_5_moe"},
          {"tie_word_embeddings", false},
          {"text_config",
           {{"model_type", "qwen3_5_moe_text"},
            {"hidden_size", h},
            {"num_hidden_layers", layers},
            {"num_attention_heads", heads},
            {"num_key_value_heads", 2},
            {"head_dim", 256},
            {"layer_types", types},
            {"num_experts", experts},
            {"num_experts_per_tok", k},
            {"moe_intermediate_size", width},
            {"shared_expert_intermediate_size", width},
            {"vocab_size", 248320},
            {"max_position_embeddings", 262144},
            {"rms_norm_eps", 1e-6},
            {"linear_num_key_heads", 16},
            {"linear_num_value_heads", value_heads},
            {"linear_key_head_dim", 128},
            {"linear_value_head_dim", 128},
            {"linear_conv_kernel_dim", 4},
            {"rope_parameters",
             {{"rope_type", "default"},
              {"rope_theta", 1e7},
              {"partial_rotary_factor", 0.25},
              {"mrope_interleaved", true},
              {"mrope_section", {11, 11, 10}}}}}}};
}

Json deepseek(const char* type, int heads, int dense, int experts, int groups, int top_groups, double scaling,
              int vocab, double theta, double factor, int positions) {
  return {{"model_type", type},
          {"hidden_size", 7168},
          {"num_hidden_layers", 61},
          {"num_attention_heads", heads},
          {"num_key_value_heads", heads},
          {"q_lora_rank", 1536},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"head_dim", 64},
          {"first_k_dense_replace", dense},
          {"intermediate_size", 18432},
          {"n_routed_experts", experts},
          {"num_experts_per_tok", 8},
          {"moe_intermediate_size", 2048},
          {"n_shared_experts", 1},
          {"n_group", groups},
          {"topk_group", top_groups},
          {"routed_scaling_factor", scaling},
          {"norm_topk_prob", true},
          {"scoring_func", "sigmoid"},
          {"topk_method", "noaux_tc"},
          {"moe_layer_freq", 1},
          {"vocab_size", vocab},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", theta},
          {"max_position_embeddings", positions},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", factor},
            {"original_max_position_embeddings", 4096},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0}}}};
}

Json mixtral(int h, int layers, int heads, int width) {
  return {{"model_type", "mixtral"},     {"hidden_size", h},
          {"num_hidden_layers", layers}, {"num_attention_heads", heads},
          {"num_key_value_heads", 8},    {"num_local_experts", 8},
          {"num_experts_per_tok", 2},    {"intermediate_size", width},
          {"vocab_size", 32000},         {"rope_theta", 1e6},
          {"rms_norm_eps", 1e-5},        {"max_position_embeddings", 32768},
          {"sliding_window", nullptr}};
}

Json gpt_oss(int layers, int experts) {
  Json types = Json::array();
  for (int l = 0; l < layers; ++l) types.push_back(l % 2 ? "full_attention" : "sliding_attention");
  return {{"model_type", "gpt_oss"},
          {"hidden_size", 2880},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 64},
          {"num_key_value_heads", 8},
          {"head_dim", 64},
          {"num_local_experts", experts},
          {"num_experts_per_tok", 4},
          {"intermediate_size", 2880},
          {"vocab_size", 201088},
          {"rope_theta", 150000},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 131072},
          {"sliding_window", 128},
          {"layer_types", types},
          {"swiglu_limit", 7.0},
          {"attention_bias", true},
          {"rope_scaling",
           {{"rope_type", "yarn"},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"truncate", false}}}};
}

Json glm(int h, int layers, int experts, int width, int dense, int dense_width, bool qk_norm,
         double scaling) {
  return {{"model_type", "glm4_moe"},
          {"hidden_size", h},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 96},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"n_routed_experts", experts},
          {"num_experts_per_tok", 8},
          {"moe_intermediate_size", width},
          {"n_shared_experts", 1},
          {"first_k_dense_replace", dense},
          {"intermediate_size", dense_width},
          {"routed_scaling_factor", scaling},
          {"n_group", 1},
          {"topk_group", 1},
          {"norm_topk_prob", true},
          {"attention_bias", true},
          {"use_qk_norm", qk_norm},
          {"partial_rotary_factor", 0.5},
          {"rope_theta", 1e6},
          {"vocab_size", 151552},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 131072}};
}

const Json kMiniMax = {{"model_type", "minimax_m2"}, {"hidden_size", 3072},
                       {"num_hidden_layers", 62},    {"num_attention_heads", 48},
                       {"num_key_value_heads", 8},   {"head_dim", 128},
                       {"rotary_dim", 64},           {"num_local_experts", 256},
                       {"num_experts_per_tok", 8},   {"intermediate_size", 1536},
                       {"vocab_size", 200064},       {"rope_theta", 5e6},
                       {"rms_norm_eps", 1e-6},       {"max_position_embeddings", 196608}};

Json qwen2(int h, int layers, int heads, int kv, int experts, int k, int width, int shared) {
  return {{"model_type", "qwen2_moe"},
          {"hidden_size", h},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv},
          {"num_experts", experts},
          {"num_experts_per_tok", k},
          {"moe_intermediate_size", width},
          {"shared_expert_intermediate_size", shared},
          {"intermediate_size", 5632},
          {"norm_topk_prob", false},
          {"vocab_size", 151936},
          {"rope_theta", 1e6},
          {"rms_norm_eps", 1e-6},
          {"max_position_embeddings", 131072},
          {"sliding_window", 65536},
          {"use_sliding_window", false}};
}

const Json kOlmoe = {{"model_type", "olmoe"},     {"hidden_size", 2048},
                     {"num_hidden_layers", 16},   {"num_attention_heads", 16},
                     {"num_key_value_heads", 16}, {"num_experts", 64},
                     {"num_experts_per_tok", 8},  {"intermediate_size", 1024},
                     {"norm_topk_prob", false},   {"clip_qkv", nullptr},
                     {"vocab_size", 50304},       {"rope_theta", 10000},
                     {"rms_norm_eps", 1e-5},      {"max_position_embeddings", 4096}};

std::vector<Published> published() {
  return {
      {"qwen3_30b", Stored::Bf16, 30.53, 3.04, 2654208, qwen3(2048, 48, 32, 4, 128, 768, 1e6, 40960)},
      {"qwen3_235b_fp8", Stored::Fp8, 235.1, 21.5, 10616832, qwen3(4096, 94, 64, 4, 128, 1536, 1e6, 40960)},
      {"qwen3_coder_480b", Stored::Bf16, 480.2, 34.4, 26542080,
       qwen3(6144, 62, 96, 8, 160, 2560, 1e7, 262144)},
      {"qwen3_next_80b", Stored::Bf16, 79.67, 3.6, 1769472, qwen_next(1e7)},
      {"qwen3_coder_next", Stored::Bf16, 79.67, 3.6, 1769472, qwen_next(5e6)},
      {"qwen35_35b", Stored::Bf16, 34.66, 2.95, 1769472, qwen35(2048, 40, 16, 32, 256, 8, 512)},
      {"qwen35_122b", Stored::Bf16, 122.1, 9.0, 5308416, qwen35(3072, 48, 32, 64, 256, 8, 1024)},
      {"qwen35_397b", Stored::Bf16, 396.3, 16.4, 7077888, qwen35(4096, 60, 32, 64, 512, 10, 1024)},
      {"deepseek_v3", Stored::Fp8, 671.0, 36.6, 24772608,
       deepseek("deepseek_v3", 128, 3, 256, 8, 4, 2.5, 129280, 1e4, 40, 163840)},
      {"cogito_671b", Stored::Bf16, 671.0, 36.6, 24772608,
       deepseek("deepseek_v3", 128, 3, 256, 8, 4, 2.5, 128815, 1e4, 40, 163840)},
      {"kimi_k2", Stored::Fp8, 1026.4, 31.7, 24772608,
       deepseek("kimi_k2", 64, 1, 384, 1, 1, 2.827, 163840, 5e4, 32, 131072)},
      {"kimi_k2_thinking", Stored::Int4Experts, 1026.4, 31.7, 24772608 + 2752512,
       deepseek("kimi_k2", 64, 1, 384, 1, 1, 2.827, 163840, 5e4, 64, 262144)},
      {"mixtral_8x7b", Stored::Bf16, 46.70, 12.7, 99090432, mixtral(4096, 32, 32, 14336)},
      {"mixtral_8x22b", Stored::Bf16, 140.6, 39.0, 169869312, mixtral(6144, 56, 48, 16384)},
      {"gpt_oss_20b", Stored::Mxfp4, 20.91, 3.61, 13254656, gpt_oss(24, 32)},
      {"gpt_oss_120b", Stored::Mxfp4, 116.8, 5.13, 13254656, gpt_oss(36, 128)},
      {"minimax_m2", Stored::Fp8, 228.7, 10.4, 7962624, kMiniMax},
      {"glm45_air", Stored::Bf16, 106.9, 12.6, 9732096, glm(4096, 46, 128, 1408, 1, 10944, false, 1.0)},
      {"glm46", Stored::Fp8, 352.8, 32.9, 13271040, glm(5120, 92, 160, 1536, 3, 12288, true, 2.5)},
      {"qwen15_moe", Stored::Bf16, 14.32, 2.38, 4866048, qwen2(2048, 24, 16, 16, 60, 4, 1408, 5632)},
      {"qwen2_57b", Stored::Bf16, 57.41, 13.7, 15482880, qwen2(3584, 28, 28, 4, 64, 8, 2560, 20480)},
      {"olmoe_7b", Stored::Bf16, 6.92, 1.18, 3538944, kOlmoe},
  };
}

using SparseTensors = std::map<std::string, std::pair<DType, std::vector<uint64_t>>>;

bool is_linear(const std::string& name, const std::vector<uint64_t>& shape) {
  return name.ends_with("_proj.weight") || name.ends_with("_mqa.weight") || name.ends_with(".w1.weight") ||
         name.ends_with(".w2.weight") || (name.ends_with(".w3.weight") && shape.size() == 2);
}

SparseTensors stored_tensors(const Published& p) {
  const ModelConfig model = parse_model_config(p.config, p.name);
  SparseTensors out;
  for (const auto& [name, shape] : published_tensors(model, p.config)) {
    const std::string module = name.substr(0, name.rfind('.'));
    if (p.stored == Stored::Fp8 && is_linear(name, shape)) {
      out[name] = {DType::F8E4M3, shape};
      out[name + "_scale_inv"] = {DType::F32, {(shape[0] + 127) / 128, (shape[1] + 127) / 128}};
    } else if (p.stored == Stored::Mxfp4 &&
               (name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj"))) {
      out[name + "_blocks"] = {DType::U8, {shape[0], shape[2], shape[1] / 32, 16}};
      out[name + "_scales"] = {DType::U8, {shape[0], shape[2], shape[1] / 32}};
    } else if (p.stored == Stored::Int4Experts && name.find(".experts.") != std::string::npos) {
      out[module + ".weight_packed"] = {DType::I32, {shape[0], shape[1] / 8}};
      out[module + ".weight_scale"] = {DType::BF16, {shape[0], shape[1] / 32}};
      out[module + ".weight_shape"] = {DType::I64, {2}};
    } else {
      out[name] = {name.ends_with("e_score_correction_bias") ? DType::F32 : DType::BF16, shape};
    }
  }
  return out;
}

// A few thousand tensors a shard, as published.
void write_shards(const fs::path& folder, const SparseTensors& tensors) {
  Json weight_map = Json::object();
  SparseTensors shard;
  int n = 0;
  const auto flush = [&] {
    const std::string name = "model-" + std::to_string(n++) + ".safetensors";
    test::write_sparse_safetensors(folder / name, shard);
    for (const auto& [tensor, _] : shard) weight_map[tensor] = name;
    shard.clear();
  };
  for (const auto& [name, t] : tensors) {
    shard[name] = t;
    if (shard.size() == 4000) flush();
  }
  flush();
  test::write_file(folder / "model.safetensors.index.json", Json{{"weight_map", weight_map}}.dump());
}

class PublishedModel : public testing::TestWithParam<Published> {};

TEST_P(PublishedModel, InspectPlanAndDryRunSayTheRightSizes) {
  const Published& p = GetParam();
  const test::TempFolder temp;
  test::write_file(temp / "config.json", p.config.dump());
  write_shards(temp.path(), stored_tensors(p));

  auto r = test::run_program({"inspect", temp.path(), "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json inspected = parse_json(r.out, "inspect");
  EXPECT_NEAR(inspected["parameters"].get<double>() / 1e9 / p.total, 1, 0.002) << inspected["parameters"];
  EXPECT_NEAR(inspected["active_parameters"].get<double>() / 1e9 / p.active, 1, 0.02)
      << inspected["active_parameters"];
  // Kept as stored, a package has the bytes of the checkpoint, up to tiles, padding and, for symmetric
  // integers, biases.
  const double kept = inspected["resident_bytes"].get<double>() + inspected["expert_bytes"].get<double>();
  EXPECT_NEAR(kept / inspected["checkpoint_bytes"].get<double>(),
              p.stored == Stored::Int4Experts ? 1.11 : 1.0, 0.04);

  r = test::run_program({"convert", temp.path(), temp / "out", "--dry-run", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json dry = parse_json(r.out, "dry run");
  EXPECT_EQ(dry["record_bytes"].get<uint64_t>(), p.q4_record_bytes);
  EXPECT_FALSE(fs::exists(temp / "out"));
  EXPECT_FALSE(fs::exists(temp / "out.partial"));

  r = test::run_program({"plan", temp.path(), "--ram", "1GiB", "--ctx", "4096", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json plan = parse_json(r.out, "plan");
  EXPECT_EQ(plan["ram_slot_bytes"].get<uint64_t>(), 1ull << 30);
  EXPECT_EQ(plan["expert_bytes"], dry["expert_bytes"]);
  EXPECT_EQ(plan["host_bytes"].get<uint64_t>(),
            plan["resident_bytes"].get<uint64_t>() + plan["kv_bytes"].get<uint64_t>() +
                plan["overhead_bytes"].get<uint64_t>() + plan["ram_slot_bytes"].get<uint64_t>());
  const ModelConfig model = parse_model_config(p.config, p.name);
  uint64_t sparse = 0;
  for (const LayerConfig& l : model.layers) sparse += l.sparse;
  EXPECT_EQ(plan["token_expert_bytes"].get<uint64_t>(), sparse * model.moe.top_k * p.q4_record_bytes);

  r = test::run_program({"plan", temp.path(), "--ram", "1GiB", "--max-memory", "1GiB"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("the cap is"), std::string::npos) << r.err;
}

INSTANTIATE_TEST_SUITE_P(Shapes, PublishedModel, testing::ValuesIn(published()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace moeflux
