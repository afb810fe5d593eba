#include "api/sampling.h"

#include <limits>

namespace moeflux::api {
namespace {

constexpr size_t kMostListed = 1u << 20;  // biases, bans, breakers, stop texts

template <class T>
std::span<const T> list(const T* items, size_t n, const char* name) {
  if (n > kMostListed) refuse("{} {} are more than {}", n, name, kMostListed);
  if (n > 0) required(items, name);
  return {items, n};
}

TextSettings model_settings(const ModelState& model) {
  return model.has_text() ? default_settings(model.text()) : TextSettings{};
}

}  // namespace

std::vector<std::string> read_texts(const char* const* texts, size_t n, const char* name) {
  std::vector<std::string> out;
  for (const char* text : list(texts, n, name)) out.emplace_back(text_argument(text, name));
  return out;
}

TextSettings read_sampling(const ModelState& model, const moeflux_sampling* sampling) {
  TextSettings settings = model_settings(model);
  if (!sampling) {
    settings.seed = random_seed();
    return settings;
  }
  const auto s = read_struct(sampling, "moeflux_sampling");
  SamplerOptions& o = settings.sampler;
  settings.seed = s.seed;
  o.temperature = s.temperature;
  o.top_k = s.top_k;
  o.top_p = s.top_p;
  o.min_p = s.min_p;
  o.typical_p = s.typical_p;
  o.top_n_sigma = s.top_n_sigma;
  o.xtc_probability = s.xtc_probability;
  o.xtc_threshold = s.xtc_threshold;
  o.penalties.repetition = s.repetition_penalty;
  o.penalties.frequency = s.frequency_penalty;
  o.penalties.presence = s.presence_penalty;
  o.penalties.window = s.penalty_window;
  o.penalties.dry.multiplier = s.dry_multiplier;
  o.penalties.dry.base = s.dry_base;
  o.penalties.dry.allowed_length = s.dry_allowed_length;
  o.penalties.dry.window = s.dry_window;
  if (s.dry_breakers || s.n_dry_breakers)
    settings.dry_breakers = read_texts(s.dry_breakers, s.n_dry_breakers, "dry_breakers");
  o.mirostat = {.on = s.mirostat != 0, .target = s.mirostat_tau, .rate = s.mirostat_eta};
  for (const moeflux_bias& bias : list(s.logit_bias, s.n_logit_bias, "logit_bias"))
    o.logit_bias.push_back({bias.token, bias.bias});
  const auto banned = list(s.banned, s.n_banned, "banned");
  o.banned.assign(banned.begin(), banned.end());
  return settings;
}

TextRequest request_of(ModelState& model, const TextSettings& settings) {
  const uint64_t seed = settings.seed.value_or(0);
  if (model.has_text()) {
    const std::lock_guard lock(model.text_mutex);
    return text_request(settings, model.text(), seed);
  }
  if (settings.sampler.penalties.dry.multiplier > 0) model.text();  // says that there is none
  TextRequest request{.generate = generate_options(settings, seed)};
  check_options(request.generate.sampler, model.engine.config().n_vocab);
  return request;
}

}  // namespace moeflux::api
