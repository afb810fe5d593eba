// Lines up the next layer's experts behind those of the layer under way, so that the drive has work while
// attention is computed. A sweep wants nearly all experts of the next layer if it is long enough; for
// decoding they are guessed: by the next layer's router, applied to the state as it is now, and by the choice
// for the token before. Guesses change time, never results.
#pragma once

#include <chrono>

#include "model/backend.h"
#include "store/predictor.h"

namespace moeflux {

struct PrefetchOptions {
  enum class Mode : uint8_t { Off, On, Auto };
  Mode mode = Mode::Auto;  // Auto: measures whether guesses pay, and stops guessing where they do not
  bool router = true, previous = true;  // where guesses come from
};

class Prefetcher {
 public:
  Prefetcher(const ModelConfig& config, const ModelWeights& weights, Backend& backend, ExpertStore& store,
             const PrefetchOptions& options);

  // Between the halves of a layer's experts.
  void expect_next(Step& step, const LayerWeights& layer, const Batch& batch);
  void step_done(size_t n_tokens, double seconds);

  bool guessing() const;
  const PrefetchGovernor& governor() const { return governor_; }
  const ExpertPredictor& predictor() const { return predictor_; }

 private:
  bool nothing_to_read() const { return store_.holds_all() || backend_.holds_all(); }
  bool observing() const;  // guesses are made, to see how good they are
  void count_right(const LayerWeights& layer, std::span<const uint32_t> chosen);
  void add_key(ExpertKey key);  // unless the backend holds the expert itself
  std::span<const uint32_t> guess(Step& step, uint32_t next);

  const ModelConfig& config_;
  Backend& backend_;
  ExpertStore& store_;
  const PrefetchOptions options_;
  std::vector<const LayerWeights*> sparse_;  // the layers with experts
  std::vector<uint32_t> number_;             // by layer: its number among them
  ExpertPredictor predictor_;
  PrefetchGovernor governor_;
  uint32_t n_decoded_ = 0;          // tokens since guesses were last judged
  std::vector<ExpertKey> to_read_;  // guesses for the next layer that were not in memory
  PredictorStats read_guesses_;     // of those, since guesses were last judged
  bool worth_a_trial_ = false;
  std::vector<ExpertKey> keys_;
};

}  // namespace moeflux
