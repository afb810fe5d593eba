#include "gen/generation_config.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json.h"

namespace moeflux {
namespace {

constexpr uint64_t kMostFileBytes = 1u << 20;
constexpr uint64_t kMostToken = std::numeric_limits<int32_t>::max();

std::optional<double> number_within(const JsonObject& file, const char* key, double least, double most) {
  if (!file.has(key)) return {};
  const double value = file.number(key);
  if (value < least || value > most) file.wrong(key, fmt::format("a number from {} to {}", least, most));
  return value;
}

// -1 is how some servers write "off".
std::optional<uint64_t> parse_top_k(const JsonObject& file) {
  if (!file.has("top_k")) return {};
  if (file.at("top_k") == -1) return 0;
  return file.count("top_k", 0, kMostToken);
}

bool is_token(const Json& value) { return value.is_number_integer() && value >= 0 && value <= kMostToken; }

std::vector<Token> parse_eos(const JsonObject& file) {
  constexpr const char* kKey = "eos_token_id";
  const Json* value = file.find(kKey);
  if (!value) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<Token> tokens;
  for (const Json& token : list) {
    if (!is_token(token)) file.wrong(kKey, "a token id or a list of token ids");
    if (std::ranges::find(tokens, token.get<Token>()) == tokens.end()) tokens.push_back(token.get<Token>());
  }
  return tokens;
}

}  // namespace

GenerationConfig parse_generation_config(const Json& json, const std::string& where) {
  const JsonObject file(json, where);
  GenerationConfig config;
  if (file.has("do_sample")) config.do_sample = file.flag_or("do_sample", true);
  config.temperature = number_within(file, "temperature", 0, 100);
  config.top_p = number_within(file, "top_p", 0, 1);
  config.min_p = number_within(file, "min_p", 0, 1);
  config.repetition_penalty = number_within(file, "repetition_penalty", 0.01, 100);
  config.top_k = parse_top_k(file);
  config.eos = parse_eos(file);
  return config;
}

GenerationConfig read_generation_config(const fs::path& folder) {
  const fs::path path = folder / "generation_config.json";
  if (!fs::exists(path)) return {};
  return parse_generation_config(parse_json(read_text(path, kMostFileBytes), path.string()), path.string());
}

SamplerOptions default_sampling(const GenerationConfig& file) {
  SamplerOptions o;
  o.temperature = file.do_sample.value_or(true) ? file.temperature.value_or(o.temperature) : 0;
  o.top_k = file.top_k.value_or(o.top_k);
  o.top_p = file.top_p.value_or(o.top_p);
  o.min_p = file.min_p.value_or(o.min_p);
  o.penalties.repetition = file.repetition_penalty.value_or(o.penalties.repetition);
  return o;
}

std::vector<Token> stop_tokens(const GenerationConfig& file, const Json& config, const std::string& where) {
  if (!file.eos.empty()) return file.eos;
  const JsonObject all(config, where);
  if (all.has("eos_token_id") || !all.has("text_config")) return parse_eos(all);
  return parse_eos(all.object("text_config"));
}

}  // namespace moeflux
