// Sampler objects: the choice of tokens for callers that evaluate themselves.
#include "api/handles.h"
#include "api/sampling.h"
#include "api/single_use.h"
#include "gen/sampler.h"

namespace moeflux::api {

struct SamplerState {
  SamplerState(std::shared_ptr<ModelState> m, const SamplerOptions& options)
      : model(std::move(m)),
        sampler(options, model->engine.config().n_vocab, choose_ops(model->engine.options().isa)) {}

  std::shared_ptr<ModelState> model;
  Sampler sampler;
  SingleUse use;
};

}  // namespace moeflux::api

namespace {

using namespace moeflux;
using namespace moeflux::api;

void check_token(const SamplerState& state, Token token) {
  const uint64_t n_vocab = state.model->engine.config().n_vocab;
  if (token >= n_vocab) refuse("token {} is not in the vocabulary of {}", token, n_vocab);
}

}  // namespace

moeflux_status moeflux_sampling_defaults(moeflux_model* model, moeflux_sampling* sampling) {
  return call([&] {
    const auto state = find_handle(model);
    const TextSettings settings = read_sampling(*state, nullptr);
    const SamplerOptions& o = settings.sampler;
    const PenaltyOptions& p = o.penalties;
    moeflux_sampling value{};
    value.seed = settings.seed.value_or(0);
    value.temperature = o.temperature;
    value.top_k = o.top_k;
    value.top_p = o.top_p;
    value.min_p = o.min_p;
    value.typical_p = o.typical_p;
    value.top_n_sigma = o.top_n_sigma;
    value.xtc_probability = o.xtc_probability;
    value.xtc_threshold = o.xtc_threshold;
    value.repetition_penalty = p.repetition;
    value.frequency_penalty = p.frequency;
    value.presence_penalty = p.presence;
    value.penalty_window = p.window;
    value.dry_multiplier = p.dry.multiplier;
    value.dry_base = p.dry.base;
    value.dry_allowed_length = p.dry.allowed_length;
    value.dry_window = p.dry.window;
    value.mirostat = o.mirostat.on;
    value.mirostat_tau = o.mirostat.target;
    value.mirostat_eta = o.mirostat.rate;
    write_struct(sampling, value, "moeflux_sampling");
  });
}

moeflux_status moeflux_sampler_new(moeflux_model* model, const moeflux_sampling* sampling,
                                   moeflux_sampler** sampler) {
  return call([&] {
    const auto state = find_handle(model);
    required(sampler, "sampler");
    const TextRequest request = request_of(*state, read_sampling(*state, sampling));
    *sampler = make_handle<moeflux_sampler>(std::make_shared<SamplerState>(state, request.generate.sampler));
  });
}

moeflux_status moeflux_sampler_free(moeflux_sampler* sampler) {
  return call([&] { remove_handle(sampler); });
}

moeflux_status moeflux_sampler_read(moeflux_sampler* sampler, const moeflux_token* tokens, size_t n_tokens) {
  return call([&] {
    const auto state = find_handle(sampler);
    const auto use = state->use.begin("sampler");
    const auto given = token_argument(tokens, n_tokens, "tokens");
    for (const Token token : given) check_token(*state, token);  // all, before the first is read
    state->sampler.read(given);
  });
}

moeflux_status moeflux_sampler_accept(moeflux_sampler* sampler, moeflux_token token) {
  return call([&] {
    const auto state = find_handle(sampler);
    const auto use = state->use.begin("sampler");
    check_token(*state, token);
    state->sampler.accept(token);
  });
}

moeflux_status moeflux_sampler_sample(moeflux_sampler* sampler, const float* logits, size_t n_logits,
                                      uint64_t position, moeflux_token* token) {
  return call([&] {
    const auto state = find_handle(sampler);
    const auto use = state->use.begin("sampler");
    required(logits, "logits"), required(token, "token");
    const uint64_t n_vocab = state->model->engine.config().n_vocab;
    if (n_logits != n_vocab) refuse("{} logits are given, and the model has {}", n_logits, n_vocab);
    *token = state->sampler.sample({logits, n_logits}, position).token;
  });
}
