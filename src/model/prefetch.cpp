#include "model/prefetch.h"

#include <algorithm>

namespace moeflux {
namespace {

constexpr size_t kGuessTokens = 4;  // with more, the union of their guesses is most of a layer
constexpr uint32_t kObservedTokens = 8, kJudgeAgain = 512;
constexpr double kLeastShareRight = 0.2;

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
  if (nothing_to_read() || options_.mode == PrefetchOptions::Mode::Off) return false;
  return options_.mode == PrefetchOptions::Mode::On || (worth_a_trial_ && governor_.on());
}

bool Prefetcher::observing() const {
  return options_.mode == PrefetchOptions::Mode::Auto && n_decoded_ < kObservedTokens;
}

void Prefetcher::add_key(ExpertKey key) {
  if (!backend_.holds(key)) keys_.push_back(key);
}

void Prefetcher::expect_next(Step& step, const LayerWeights& layer, const Batch& batch) {
  const size_t n_tokens = batch.tokens.size();
  if (options_.mode == PrefetchOptions::Mode::Off) return;
  const uint32_t number = number_[layer.index];
  const bool is_last = number + 1 == sparse_.size();
  // Fewer picks than twice the experts leave a part of the layer untouched: not worth reading all of it.
  const bool wants_all = batch.sweeps() && n_tokens * config_.moe.top_k >= 2 * config_.moe.n_experts;
  if (wants_all && !is_last) backend_.expect(step, *sparse_[number + 1]);
  if (nothing_to_read()) return;
  if (n_tokens <= kGuessTokens) {
    predictor_.chosen(number, backend_.chosen(step));
    count_right(layer, backend_.chosen(step));
  }
  if (is_last) return;
  if (wants_all) {
    keys_.clear();
    for (uint64_t e = 0; e < config_.moe.n_experts; ++e) add_key({sparse_[number + 1]->index, e});
    store_.expect(keys_, ExpertStore::Use::Sweep);
  } else if (n_tokens <= kGuessTokens && (guessing() || observing())) {
    keys_.clear();
    for (const uint32_t id : guess(step, number + 1)) add_key({sparse_[number + 1]->index, id});
    to_read_ = keys_;
    store_.keep_missing(to_read_);
    if (guessing()) store_.expect(keys_, ExpertStore::Use::Decode);
  }
}

std::span<const uint32_t> Prefetcher::guess(Step& step, uint32_t next) {
  if (options_.router) {
    std::vector<uint32_t> each_once;
    for (const uint32_t id : backend_.guess(step, *sparse_[next]))
      if (std::ranges::find(each_once, id) == each_once.end()) each_once.push_back(id);
    predictor_.foresee(next, each_once);
  }
  if (!options_.previous && !options_.router) return {};
  const size_t most = (options_.router && options_.previous ? 3 : 2) * config_.moe.top_k / 2;
  return predictor_.guess(next, most);
}

void Prefetcher::step_done(size_t n_tokens, double seconds) {
  if (n_tokens != 1 || nothing_to_read() || options_.mode != PrefetchOptions::Mode::Auto) return;
  // Guesses that are mostly wrong cannot pay, and trying them out would cost time.
  if (++n_decoded_ == kObservedTokens) worth_a_trial_ = read_guesses_.share_right() >= kLeastShareRight;
  if (n_decoded_ == kJudgeAgain) {
    n_decoded_ = 0;
    read_guesses_ = {};
  }
  if (worth_a_trial_) governor_.token_done(seconds);
}

// What is in memory anyway is easy to guess right, and gains nothing: popular experts are there, and what
// remains to be read may be what nobody foresees.
void Prefetcher::count_right(const LayerWeights& layer, std::span<const uint32_t> chosen) {
  for (const ExpertKey& key : to_read_) {
    if (key.layer != layer.index) continue;
    ++read_guesses_.guessed;
    read_guesses_.right += std::ranges::find(chosen, key.expert) != chosen.end();
  }
  to_read_.clear();
}

}  // namespace moeflux
