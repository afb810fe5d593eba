// The forward pass, written once for all families and backends.
#pragma once

#include "model/backend.h"

namespace moeflux {

class Model {
 public:
  Model(const ModelConfig& config, const ModelWeights& weights, Backend& backend, ExpertStore& store)
      : config_(config), weights_(weights), backend_(backend), store_(store) {}

  // Evaluates a batch and advances its sequences. logits: [batch.logit_rows.size(), n_vocab].
  // Throws Error{InvalidArgument} for a token beyond the vocabulary or a sequence that is full; an Error in
  // the middle (a failed read) leaves the sequences of the batch unusable, and nothing else.
  void forward(const Batch& batch, std::span<float> logits, const Tap& tap = {});

  const ModelConfig& config() const { return config_; }

 private:
  void check_batch(const Batch& batch) const;
  void expect_next(Step& step, const LayerWeights& layer, size_t n_tokens);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Backend& backend_;
  ExpertStore& store_;
};

}  // namespace moeflux
