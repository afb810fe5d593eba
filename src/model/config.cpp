#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/checked.h"
#include "base/json.h"

namespace moeflux {
namespace {

// Generous limits: a value beyond them is a broken file, and products of any three fit in 64 bits.
constexpr uint64_t kMaxWidth = 1u << 20, kMaxLayers = 4096, kMaxExperts = 65536, kMaxVocab = 1u << 24,
                   kMaxPosition = 1u << 30;

// How the published families differ; a value in config.json goes ahead of a default here.
struct Family {
  const char* name;
  Mixer mixer = Mixer::Attention;
  QkNorm qk_norm = QkNorm::None;
  Router router = Router::Softmax;
  enum { Always, TrueUnlessSaid, FalseUnlessSaid } norm_topk = Always;
  double partial_rotary = 1;
  bool hybrid = false;                 // delta-net layers, gated attention, zero-centred norms
  bool dense_first = false;            // first_k_dense_replace
  bool sparse_step = false;            // decoder_sparse_step, mlp_only_layers
  bool width_is_intermediate = false;  // experts have intermediate_size
};

constexpr Family kFamilies[] = {
    {.name = "qwen3_moe",
     .qk_norm = QkNorm::PerHead,
     .norm_topk = Family::FalseUnlessSaid,
     .sparse_step = true},
    {.name = "qwen2_moe", .norm_topk = Family::FalseUnlessSaid, .sparse_step = true},
    {.name = "olmoe",
     .qk_norm = QkNorm::WholeVector,
     .norm_topk = Family::FalseUnlessSaid,
     .width_is_intermediate = true},
    {.name = "mixtral", .width_is_intermediate = true},
    {.name = "minimax_m2",
     .qk_norm = QkNorm::WholeVector,
     .router = Router::Sigmoid,
     .width_is_intermediate = true},
    {.name = "glm4_moe",
     .router = Router::Sigmoid,
     .norm_topk = Family::TrueUnlessSaid,
     .partial_rotary = 0.5,
     .dense_first = true},
    {.name = "gpt_oss", .router = Router::TopkSoftmax, .width_is_intermediate = true},
    {.name = "qwen3_next",
     .qk_norm = QkNorm::PerHead,
     .norm_topk = Family::TrueUnlessSaid,
     .partial_rotary = 0.25,
     .hybrid = true,
     .sparse_step = true},
    {.name = "qwen3_5_moe", .qk_norm = QkNorm::PerHead, .partial_rotary = 0.25, .hybrid = true},
    {.name = "deepseek_v3",
     .mixer = Mixer::Mla,
     .router = Router::Sigmoid,
     .norm_topk = Family::TrueUnlessSaid,
     .dense_first = true},
};

const Family& find_family(std::string type, const std::string& where) {
  if (type.ends_with("_text")) type.resize(type.size() - 5);
  if (type == "kimi_k2") type = "deepseek_v3";
  for (const Family& f : kFamilies)
    if (type == f.name) return f;
  fail(Errc::Unsupported, "{}: model_type '{}' is not supported; supported are {}", where, type,
       known_families());
}

float positive(const JsonObject& c, const char* key, double absent) {
  const double value = c.number_or(key, absent);
  if (!(value > 0) || value > 1e9) c.wrong(key, "a positive number");
  return static_cast<float>(value);
}

void refuse(const JsonObject& c, bool bad, const std::string& why) {
  if (bad) fail(Errc::Corrupt, "{}: {}", c.where(), why);
}

// layer_types, when there; each entry must be one of `known`.
std::vector<std::string> layer_types(const JsonObject& c, uint64_t n_layers,
                                     std::initializer_list<std::string_view> known) {
  const Json* list = c.find("layer_types");
  if (!list) return {};
  if (!list->is_array() || list->size() != n_layers)
    c.wrong("layer_types", fmt::format("a list of num_hidden_layers = {} entries", n_layers));
  std::vector<std::string> types;
  for (const Json& entry : *list) {
    if (!entry.is_string() || std::ranges::find(known, entry.get<std::string>()) == known.end())
      fail(Errc::Unsupported, "{}: layer_types has the unknown entry {}", c.where(), entry.dump());
    types.push_back(entry.get<std::string>());
  }
  return types;
}

// The values of rope_parameters (newer files), rope_scaling (older ones) and the root, in this order.
class RopeValues {
 public:
  explicit RopeValues(const JsonObject& c) : root_(c) {
    for (const char* key : {"rope_parameters", "rope_scaling"})
      if (c.has(key)) nested_.push_back(c.object(key));
  }
  const JsonObject& with(const char* key) const {
    for (const JsonObject& o : nested_)
      if (o.has(key)) return o;
    return root_;
  }
  // A number that counts as absent when it is null or 0, as the reference treats these keys.
  double number_or(const char* key, double absent) const {
    const double value = nested_.empty() ? 0 : with(key).number_or(key, 0);
    return value != 0 ? value : absent;
  }
  std::string type() const {
    for (const JsonObject& o : nested_)
      for (const char* key : {"rope_type", "type"})
        if (o.has(key)) return o.string(key);
    return "default";
  }

 private:
  const JsonObject& root_;
  std::vector<JsonObject> nested_;
};

void apply_yarn(RopeConfig& rope, std::vector<double>& f, const RopeValues& values, const JsonObject& c,
                double theta, uint64_t max_position) {
  const JsonObject& source = values.with("original_max_position_embeddings");
  const double original = source.number("original_max_position_embeddings");
  const double factor = values.number_or("factor", static_cast<double>(max_position) / original);
  refuse(c, !(original > 0) || !(factor > 0),
         fmt::format("YaRN factor {} of {} positions", factor, original));
  const double dim = static_cast<double>(rope.dim);
  const auto correction = [&](double turns) {
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  refuse(c, values.number_or("beta_fast", 32) <= 0 || values.number_or("beta_slow", 1) <= 0,
         "beta_fast and beta_slow must be positive");
  double low = correction(values.number_or("beta_fast", 32)),
         high = correction(values.number_or("beta_slow", 1));
  if (values.with("truncate").flag_or("truncate", true)) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < f.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f[i] = f[i] * (1 - ramp) + f[i] / factor * ramp;
  }
  const double mscale = values.number_or("mscale", 0), all = values.number_or("mscale_all_dim", 0);
  const double derived = mscale != 0 && all != 0 ? yarn_mscale(factor, mscale) / yarn_mscale(factor, all)
                                                 : yarn_mscale(factor, 1);
  const double scale = values.number_or("attention_factor", derived);
  refuse(c, !(std::fabs(scale) < 1e6), fmt::format("YaRN attention factor {}", scale));
  rope.scale = static_cast<float>(scale);
}

RopeConfig parse_rope(const JsonObject& c, const RopeValues& values, uint64_t dim, uint64_t max_position) {
  RopeConfig rope;
  rope.dim = dim;
  refuse(c, dim == 0 || dim % 2 != 0,
         fmt::format("{} rotated components of a head: want an even number", dim));
  const double theta = values.with("rope_theta").number("rope_theta");
  if (!(theta > 1) || theta > 1e15) values.with("rope_theta").wrong("rope_theta", "a number above 1");
  std::vector<double> f(dim / 2);
  for (size_t i = 0; i < f.size(); ++i)
    f[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
  const std::string type = values.type();
  if (type == "yarn")
    apply_yarn(rope, f, values, c, theta, max_position);
  else if (type != "default" && type != "mrope")  // mrope: for text its three positions are one
    fail(Errc::Unsupported, "{}: rope type '{}' is not supported (default and yarn are)", c.where(), type);
  rope.inv_freq.assign(f.begin(), f.end());
  return rope;
}

void parse_attention(ModelConfig& m, const Family& family, const JsonObject& c) {
  AttentionConfig& a = m.attention;
  a.n_heads = c.count("num_attention_heads", 1, kMaxWidth);
  if (family.mixer == Mixer::Mla) return;
  a.n_kv_heads = c.count_or("num_key_value_heads", a.n_heads, 1, kMaxWidth);
  refuse(c, a.n_heads % a.n_kv_heads != 0,
         fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}", a.n_heads,
                     a.n_kv_heads));
  refuse(c, !c.has("head_dim") && m.d_model % a.n_heads != 0,
         fmt::format("no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}", m.d_model,
                     a.n_heads));
  a.head_dim = c.count_or("head_dim", m.d_model / a.n_heads, 1, kMaxWidth);
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  a.qk_norm = family.qk_norm;
  a.gated = family.hybrid;
  if (m.family == "glm4_moe" && c.flag_or("use_qk_norm", false)) a.qk_norm = QkNorm::PerHead;
  if (m.family == "olmoe") a.clip_qkv = static_cast<float>(c.number_or("clip_qkv", 0));
  if (m.family == "qwen2_moe") {
    a.qkv_bias = c.flag_or("qkv_bias", true);
  } else if (m.family != "mixtral" && m.family != "minimax_m2") {
    a.qkv_bias = c.flag_or("attention_bias", m.family == "gpt_oss");
    a.o_bias = a.qkv_bias && m.family != "glm4_moe";
  }
  a.sinks = m.family == "gpt_oss";

  const RopeValues values(c);
  const JsonObject& partial = values.with("partial_rotary_factor");
  double factor = partial.number_or("partial_rotary_factor", family.partial_rotary);
  if (!(factor > 0) || factor > 1) partial.wrong("partial_rotary_factor", "a number in (0, 1]");
  const auto rotary = static_cast<uint64_t>(static_cast<double>(a.head_dim) * factor);
  m.rope = parse_rope(c, values, c.count_or("rotary_dim", rotary, 2, a.head_dim), m.max_position);
}

void parse_mla(ModelConfig& m, const JsonObject& c) {
  MlaConfig& a = m.mla;
  a.q_rank = c.count_or("q_lora_rank", 0, 1, kMaxWidth);
  a.kv_rank = c.count("kv_lora_rank", 1, kMaxWidth);
  a.nope_dim = c.count("qk_nope_head_dim", 1, kMaxWidth);
  a.rope_dim = c.count("qk_rope_head_dim", 2, kMaxWidth);
  a.value_dim = c.count("v_head_dim", 1, kMaxWidth);
  a.bias = c.flag_or("attention_bias", false);
  const RopeValues values(c);
  m.rope = parse_rope(c, values, a.rope_dim, m.max_position);
  m.rope.interleaved = c.flag_or("rope_interleave", true);
  double scale = 1 / std::sqrt(static_cast<double>(a.nope_dim + a.rope_dim));
  const double all = values.number_or("mscale_all_dim", 0);
  if (values.type() != "default" && all != 0) {
    const double original = values.number_or("original_max_position_embeddings", 1);
    const double factor = values.number_or("factor", static_cast<double>(m.max_position) / original);
    scale *= std::pow(yarn_mscale(factor, all), 2);
  }
  refuse(c, !(scale < 1e6), fmt::format("softmax scale {}", scale));
  m.attention.scale = static_cast<float>(scale);
}

void parse_delta(ModelConfig& m, const JsonObject& c) {
  DeltaConfig& d = m.delta;
  d.n_key_heads = c.count_or("linear_num_key_heads", 16, 1, kMaxWidth);
  d.n_value_heads = c.count_or("linear_num_value_heads", 32, 1, kMaxWidth);
  d.key_dim = c.count_or("linear_key_head_dim", 128, 1, kMaxWidth);
  d.value_dim = c.count_or("linear_value_head_dim", 128, 1, kMaxWidth);
  d.conv_width = c.count_or("linear_conv_kernel_dim", 4, 1, 64);
  refuse(c, d.n_value_heads % d.n_key_heads != 0,
         fmt::format("linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
                     d.n_value_heads, d.n_key_heads));
}

// Which layers mix how, see which window, and have experts.
void parse_layers(ModelConfig& m, const Family& family, const JsonObject& c) {
  const uint64_t n = c.count("num_hidden_layers", 1, kMaxLayers);
  m.layers.assign(n, {.mixer = family.mixer});
  if (family.hybrid) {
    const auto types = layer_types(c, n, {"linear_attention", "full_attention"});
    const uint64_t interval = c.count_or("full_attention_interval", 4, 1, kMaxLayers);
    for (uint64_t l = 0; l < n; ++l)
      if (types.empty() ? (l + 1) % interval != 0 : types[l] == "linear_attention")
        m.layers[l].mixer = Mixer::DeltaNet;
  } else if (family.mixer == Mixer::Attention) {
    const bool qwen = family.sparse_step;
    const uint64_t window = qwen && !c.flag_or("use_sliding_window", false)
                                ? 0
                                : c.count_or("sliding_window", 0, 0, kMaxPosition);
    const auto types = layer_types(c, n, {"sliding_attention", "full_attention"});
    const uint64_t first = m.family == "qwen2_moe" ? c.count_or("max_window_layers", 28, 0, kMaxLayers) : 0;
    for (uint64_t l = 0; l < n; ++l) {
      const bool sliding = !types.empty()          ? types[l] == "sliding_attention"
                           : m.family == "gpt_oss" ? l % 2 == 0
                                                   : l >= first;
      refuse(c, m.family == "gpt_oss" && sliding && window == 0, "sliding layers, but no sliding_window");
      m.layers[l].window = sliding ? window : 0;
    }
  }
  if (family.dense_first) {
    const uint64_t dense = c.count_or("first_k_dense_replace", 0, 0, kMaxLayers);
    refuse(c, c.count_or("moe_layer_freq", 1, 1, kMaxLayers) != 1,
           "moe_layer_freq other than 1 is not supported");
    for (uint64_t l = 0; l < std::min(n, dense); ++l) m.layers[l].sparse = false;
  }
  if (family.sparse_step) {
    const uint64_t step = c.count_or("decoder_sparse_step", 1, 1, kMaxLayers);
    for (uint64_t l = 0; l < n; ++l) m.layers[l].sparse = (l + 1) % step == 0;
    if (const Json* list = c.find("mlp_only_layers")) {
      if (!list->is_array()) c.wrong("mlp_only_layers", "a list of layer numbers");
      for (const Json& entry : *list) {
        if (!entry.is_number_integer() || entry.get<int64_t>() < 0)
          c.wrong("mlp_only_layers", "a list of layer numbers");
        if (entry.get<uint64_t>() < n) m.layers[entry.get<uint64_t>()].sparse = false;
      }
    }
  }
  if (std::ranges::any_of(m.layers, [](const LayerConfig& l) { return !l.sparse; }))
    m.dense_width = c.count("intermediate_size", 1, kMaxWidth);
}

void parse_moe(ModelConfig& m, const Family& family, const JsonObject& c) {
  MoeConfig& e = m.moe;
  const bool defaults = m.family == "qwen3_5_moe";
  const char* key = nullptr;
  for (const char* name : {"num_local_experts", "num_experts", "n_routed_experts"})
    if (!key && c.has(name)) key = name;
  if (!key && !defaults)
    fail(Errc::Corrupt, "{}: none of num_experts, num_local_experts and n_routed_experts is there",
         c.where());
  e.n_experts = key ? c.count(key, 1, kMaxExperts) : 256;
  e.top_k = defaults ? c.count_or("num_experts_per_tok", 8, 1, e.n_experts)
                     : c.count("num_experts_per_tok", 1, e.n_experts);
  const char* width = family.width_is_intermediate ? "intermediate_size" : "moe_intermediate_size";
  e.width = defaults ? c.count_or(width, 512, 1, kMaxWidth) : c.count(width, 1, kMaxWidth);
  e.router = family.router;
  e.norm_topk = family.norm_topk == Family::Always ||
                c.flag_or("norm_topk_prob", family.norm_topk == Family::TrueUnlessSaid);
  if (m.family == "gpt_oss") {
    e.router_bias = e.expert_bias = true;
    e.activation = Activation::ClampedSwiglu;
    e.clamp = static_cast<float>(c.number_or("swiglu_limit", 7.0));
    if (!(e.clamp > 0)) c.wrong("swiglu_limit", "a positive number");
  }
  if (family.router == Router::Sigmoid) e.score_bias = true;
  if (family.dense_first) {  // DeepSeek and GLM
    e.norm_eps = 1e-20f;
    const double scaling = c.number_or("routed_scaling_factor", 1);
    if (!(std::fabs(scaling) < 1e6)) c.wrong("routed_scaling_factor", "a number below a million");
    e.scaling = static_cast<float>(scaling);
    e.n_groups = c.count_or("n_group", 1, 1, e.n_experts);
    e.top_groups = c.count_or("topk_group", e.n_groups, 1, e.n_groups);
    refuse(c, e.n_experts % e.n_groups != 0,
           fmt::format("{} experts do not divide into n_group = {} groups", e.n_experts, e.n_groups));
    refuse(c, e.top_k > e.top_groups * (e.n_experts / e.n_groups),
           fmt::format("num_experts_per_tok {} is more than the {} experts of topk_group = {} groups",
                       e.top_k, e.top_groups * (e.n_experts / e.n_groups), e.top_groups));
    if (c.has("scoring_func") && c.string("scoring_func") != "sigmoid") c.wrong("scoring_func", "'sigmoid'");
    if (c.has("topk_method") && c.string("topk_method") != "noaux_tc") c.wrong("topk_method", "'noaux_tc'");
    e.shared_width = checked_mul(e.width, c.count_or("n_shared_experts", 0, 0, 1024), "shared expert width");
  }
  if (family.hybrid || m.family == "qwen2_moe") {
    e.shared_gated = true;
    e.shared_width = family.hybrid ? c.count_or("shared_expert_intermediate_size", 512, 1, kMaxWidth)
                                   : c.count("shared_expert_intermediate_size", 1, kMaxWidth);
  }
}

}  // namespace

double yarn_mscale(double factor, double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; }

bool ModelConfig::has(Mixer mixer) const {
  return std::ranges::any_of(layers, [&](const LayerConfig& l) { return l.mixer == mixer; });
}

ModelConfig mtp_config(const ModelConfig& model) {
  ModelConfig m = model;
  m.layers = {model.mtp};
  return m;
}

std::string known_families() {
  std::string names;
  for (const Family& f : kFamilies) names += fmt::format("{}{}", names.empty() ? "" : ", ", f.name);
  return names + ", kimi_k2";
}

ModelConfig parse_model_config(const Json& config, const std::string& where) {
  const JsonObject root(config, where);
  // Vision-language wrappers keep everything of the language model under text_config.
  const JsonObject c = root.has("text_config") ? root.object("text_config") : root;
  const Family& family = find_family((c.has("model_type") ? c : root).string("model_type"), where);

  ModelConfig m;
  m.family = family.name;
  m.d_model = c.count("hidden_size", 1, kMaxWidth);
  m.n_vocab = c.count("vocab_size", 1, kMaxVocab);
  m.max_position = c.count("max_position_embeddings", 1, kMaxPosition);
  m.norm_eps = positive(c, "rms_norm_eps", 1e-6);
  m.zero_centred_norms = family.hybrid;
  m.tied_embeddings = (c.has("tie_word_embeddings") ? c : root).flag_or("tie_word_embeddings", false);
  const std::string act = c.string_or("hidden_act", "silu");
  if (act != "silu" && act != "swish")
    fail(Errc::Unsupported, "{}: hidden_act '{}' is not supported (silu is)", c.where(), act);
  parse_layers(m, family, c);
  m.mtp.mixer = family.mixer;
  parse_attention(m, family, c);
  if (family.mixer == Mixer::Mla) parse_mla(m, c);
  if (family.hybrid) parse_delta(m, c);
  parse_moe(m, family, c);
  return m;
}

}  // namespace moeflux
