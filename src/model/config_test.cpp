#include "model/config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/checkpoint_builder.h"

namespace moeflux {
namespace {

Json golden_config(const std::string& family) {
  return test::read_json(test::data_folder() / "goldens" / family / "config.json");
}

// A published config of DeepSeek's kind, with the older rope keys.
Json deepseek(double theta, double factor, double beta_fast) {
  Json c = golden_config("deepseek_v3");
  c.erase("rope_parameters");
  c["qk_rope_head_dim"] = 64;
  c["qk_nope_head_dim"] = 128;
  c["rope_theta"] = theta;
  c["rope_scaling"] = {
      {"type", "yarn"},         {"factor", factor}, {"original_max_position_embeddings", 4096},
      {"beta_fast", beta_fast}, {"beta_slow", 1},   {"mscale", 1.0},
      {"mscale_all_dim", 1.0}};
  return c;
}

TEST(Config, YarnFrequenciesAndScale) {
  const ModelConfig v3 = parse_model_config(deepseek(10000, 40, 32), "test");
  const auto near = [](float got, double want) { EXPECT_NEAR(got / want, 1, 1e-6); };
  near(v3.rope.inv_freq[9], 0.0749894209);
  near(v3.rope.inv_freq[11], 0.0390069266);
  near(v3.rope.inv_freq[16], 0.0055);
  near(v3.rope.inv_freq[31], 3.33380358e-06);
  near(v3.attention.scale, 0.1352337789);
  EXPECT_EQ(v3.rope.scale, 1.0f);
  const ModelConfig kimi = parse_model_config(deepseek(50000, 32, 1), "test");
  near(kimi.rope.inv_freq[18], 0.00227420376);
  near(kimi.rope.inv_freq[20], 3.61404677e-05);
  near(kimi.attention.scale, 0.1308608);

  Json oss = golden_config("gpt_oss");
  oss["head_dim"] = 64;
  oss["rope_parameters"]["original_max_position_embeddings"] = 4096;
  const ModelConfig m = parse_model_config(oss, "test");
  near(m.rope.inv_freq[8], 0.0508132748);
  near(m.rope.inv_freq[12], 0.00679495949);
  near(m.rope.inv_freq[18], 3.83088124e-05);
  near(m.rope.scale, 1.3465735903);
}

TEST(Config, PlainFrequencies) {
  Json c = golden_config("qwen3_moe");
  c["head_dim"] = 128;
  const ModelConfig m = parse_model_config(c, "test");
  EXPECT_NEAR(m.rope.inv_freq[1], 0.805842188, 1e-7);
  EXPECT_NEAR(m.rope.inv_freq[63] / 1.24093776e-06, 1, 1e-6);
}

TEST(Config, OlderAndNewerKeysMeanTheSame) {
  Json newer = golden_config("qwen3_moe"), older = newer;
  older.erase("rope_parameters");
  older["rope_theta"] = 1000000.0;
  older["rope_scaling"] = nullptr;
  older["num_experts"] = older["num_local_experts"];
  older.erase("num_local_experts");
  const ModelConfig a = parse_model_config(newer, "test"), b = parse_model_config(older, "test");
  EXPECT_EQ(a.rope.inv_freq, b.rope.inv_freq);
  EXPECT_EQ(a.moe.n_experts, b.moe.n_experts);
}

TEST(Config, DefaultsOfAbsentKeys) {
  Json c = golden_config("qwen3_moe");
  c.erase("norm_topk_prob");
  EXPECT_FALSE(parse_model_config(c, "test").moe.norm_topk);
  c = golden_config("qwen3_next");
  c.erase("norm_topk_prob");
  c.erase("layer_types");
  const ModelConfig next = parse_model_config(c, "test");
  EXPECT_TRUE(next.moe.norm_topk);
  EXPECT_EQ(next.layers[3].mixer, Mixer::Attention);
  EXPECT_EQ(next.layers[4].mixer, Mixer::DeltaNet);
  EXPECT_EQ(next.rope.dim, 16u);
}

TEST(Config, LayersThatAreDenseInBetween) {
  Json c = golden_config("qwen3_moe");
  c["mlp_only_layers"] = {1};
  EXPECT_FALSE(parse_model_config(c, "test").layers[1].sparse);
  c["mlp_only_layers"] = Json::array();
  c["decoder_sparse_step"] = 2;
  const ModelConfig m = parse_model_config(c, "test");
  EXPECT_FALSE(m.layers[0].sparse);
  EXPECT_TRUE(m.layers[1].sparse);
  EXPECT_EQ(m.dense_width, 256u);
}

TEST(Config, EveryBadFieldIsNamed) {
  const struct {
    const char *family, *field;
    Json value;
  } cases[] = {
      {"qwen3_moe", "hidden_size", 0},
      {"qwen3_moe", "hidden_size", -1},
      {"qwen3_moe", "hidden_size", 1e18},
      {"qwen3_moe", "hidden_size", "128"},
      {"qwen3_moe", "hidden_size", 128.5},
      {"qwen3_moe", "num_hidden_layers", 0},
      {"qwen3_moe", "num_hidden_layers", 1e9},
      {"qwen3_moe", "vocab_size", 0},
      {"qwen3_moe", "num_experts_per_tok", 17},
      {"qwen3_moe", "num_experts_per_tok", 0},
      {"qwen3_moe", "num_local_experts", 0},
      {"qwen3_moe", "num_key_value_heads", 3},
      {"qwen3_moe", "rms_norm_eps", 0},
      {"qwen3_moe", "rms_norm_eps", -1},
      {"qwen3_moe", "hidden_act", "gelu"},
      {"qwen3_moe", "head_dim", 0},
      {"qwen3_moe", "mlp_only_layers", "x"},
      {"qwen3_moe", "moe_intermediate_size", nullptr},
      {"qwen3_moe", "model_type", "llama"},
      {"qwen3_moe", "model_type", nullptr},
      {"qwen3_moe", "rope_parameters", Json{{"rope_type", "linear"}, {"rope_theta", 1e4}}},
      {"qwen3_moe", "rope_parameters", Json{{"rope_type", "default"}}},
      {"deepseek_v3", "n_group", 3},
      {"deepseek_v3", "topk_group", 5},
      {"deepseek_v3", "kv_lora_rank", 0},
      {"deepseek_v3", "qk_rope_head_dim", 15},
      {"deepseek_v3", "scoring_func", "softmax"},
      {"qwen3_next", "linear_num_value_heads", 3},
      {"qwen3_next", "layer_types", Json{"full_attention"}},
      {"gpt_oss", "sliding_window", 0},
      {"gpt_oss", "swiglu_limit", -1},
      {"glm4_moe", "moe_layer_freq", 2},
  };
  for (const auto& c : cases) {
    Json config = golden_config(c.family);
    config[c.field] = c.value;
    try {
      parse_model_config(config, "some/config.json");
      ADD_FAILURE() << c.field << " = " << c.value << " was accepted";
    } catch (const Error& e) {
      const std::string what = e.what();
      EXPECT_NE(what.find("some/config.json"), std::string::npos) << what;
    }
  }
}

TEST(Config, MissingFieldsAreNamed) {
  for (const std::string& family : test::golden_families()) {
    const Json whole = golden_config(family);
    const bool nested = whole.contains("text_config");
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                            "max_position_embeddings"}) {
      Json config = whole;
      (nested ? config["text_config"] : config).erase(key);
      try {
        parse_model_config(config, "x");
        ADD_FAILURE() << family << ": " << key;
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
      }
    }
  }
}

}  // namespace
}  // namespace moeflux
