#include "gen/text_settings.h"

#include <algorithm>
#include <random>

namespace moeflux {

TextSettings default_settings(const TextModel& model) {
  TextSettings settings;
  settings.sampler = default_sampling(model.defaults());
  return settings;
}

uint64_t random_seed() {
  std::random_device device;
  return device();  // 32 bits: people copy it
}

GenerateOptions generate_options(const TextSettings& settings, uint64_t seed) {
  GenerateOptions options;
  options.sampler = settings.sampler;
  options.sampler.seed = seed;
  if (settings.max_tokens) options.max_tokens = *settings.max_tokens;
  options.min_tokens = settings.min_tokens;
  options.ignore_stop_tokens = settings.ignore_eos;
  options.draft = settings.draft;
  options.draft_from = settings.draft_from;
  return options;
}

TextRequest text_request(const TextSettings& settings, const TextModel& model, uint64_t seed) {
  TextRequest request{.generate = generate_options(settings, seed), .stop = settings.stop};
  SamplerOptions& sampler = request.generate.sampler;
  if (sampler.penalties.dry.multiplier > 0)
    sampler.penalties.dry.breakers = model.tokens_with(settings.dry_breakers);
  for (const auto& [token, bias] : settings.logit_bias)
    sampler.logit_bias.push_back({model.token_named(token), bias});
  request.generate.stop_tokens = model.stop_tokens();
  // Those beyond the vocabulary never come up, and could not be banned.
  std::erase_if(request.generate.stop_tokens, [&](Token token) { return token >= model.n_vocab(); });
  check_options(sampler, model.n_vocab());
  return request;
}

void check_grammar(const TextModel& model, const Grammar* grammar) {
  if (grammar && model.chat_template().answer_format() == AnswerFormat::Harmony)
    fail(Errc::Unsupported, "{}: its answers come in channels, to which a grammar cannot be applied",
         model.folder().string());
}

}  // namespace moeflux
