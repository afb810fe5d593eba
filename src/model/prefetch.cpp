#include "model/prefetch.h"

#include <algorithm>

namespace moeflux {
namespace {

constexpr size_t kGuessTokens = 4;  // with more, the union of their guesses is most of a layer

std::vector<const LayerWeights*> sparse_layers(const ModelWeights& weights) {
  std::vector<const LayerWeights*> list;
  for (const LayerWeights& layer : weights.layers)
    if (layer.config->sparse) list.push_back(&layer);
  return list;
}

}  // namespace

Prefetcher::Prefetcher(const ModelConfig& config, const ModelWeights& weights, Backend& backend,
                       ExpertStore& store, const PrefetchOptions& options)
    : config_(config),
      backend_(backend),
      store_(store),
      options_(options),
      sparse_(sparse_layers(weights)),
      number_(weights.layers.size()),
      predictor_(static_cast<uint32_t>(std::max<size_t>(1, sparse_.size())),
                 static_cast<uint32_t>(std::max<uint64_t>(1, config.moe.n_experts))) {
  for (uint32_t i = 0; i < sparse_.size(); ++i) number_[sparse_[i]->index] = i;
}

bool Prefetcher::guessing() const {
  if (store_.holds_all() || options_.mode == PrefetchOptions::Mode::Off) return false;
  if (!options_.router && !options_.previous) return false;
  return options_.mode == PrefetchOptions::Mode::On || governor_.on();
}

void Prefetcher::expect_next(Step& step, const LayerWeights& layer, size_t n_tokens) {
  if (store_.holds_all() || options_.mode == PrefetchOptions::Mode::Off) return;
  const uint32_t number = number_[layer.index];
  if (n_tokens <= kGuessTokens && options_.previous) predictor_.chosen(number, backend_.chosen(step));
  if (number + 1 == sparse_.size()) return;
  if (n_tokens > kSweepTokens) {
    keys_.clear();
    for (uint64_t e = 0; e < config_.moe.n_experts; ++e) keys_.push_back({sparse_[number + 1]->index, e});
    store_.expect(keys_, ExpertStore::Use::Sweep);
  } else if (n_tokens <= kGuessTokens && guessing()) {
    expect_guesses(step, number + 1);
  }
}

void Prefetcher::expect_guesses(Step& step, uint32_t next) {
  if (options_.router) {
    const auto ids = backend_.guess(step, *sparse_[next]);
    std::vector<uint32_t> each_once;
    for (const uint32_t id : ids)
      if (std::ranges::find(each_once, id) == each_once.end()) each_once.push_back(id);
    predictor_.foresee(next, each_once);
  }
  keys_.clear();
  const size_t most = (options_.router && options_.previous ? 3 : 2) * config_.moe.top_k / 2;
  for (const uint32_t id : predictor_.guess(next, most)) keys_.push_back({sparse_[next]->index, id});
  store_.expect(keys_, ExpertStore::Use::Decode);
}

void Prefetcher::step_done(size_t n_tokens, double seconds) {
  if (n_tokens == 1 && !store_.holds_all() && options_.mode == PrefetchOptions::Mode::Auto)
    governor_.token_done(seconds);
}

}  // namespace moeflux
