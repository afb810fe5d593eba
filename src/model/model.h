// The forward pass, written once for all families and backends.
#pragma once

#include "model/backend.h"
#include "model/prefetch.h"

namespace moeflux {

class Model {
 public:
  Model(const ModelConfig& config, const ModelWeights& weights, Backend& backend, ExpertStore& store,
        const PrefetchOptions& prefetch = {}, Trace* trace = nullptr)
      : config_(config),
        weights_(weights),
        backend_(backend),
        store_(store),
        prefetcher_(config, weights, backend, store, prefetch),
        trace_(trace) {}

  // Evaluates a batch and advances its sequences. logits: [batch.logit_rows.size(), n_vocab].
  // Throws Error{InvalidArgument} for a token beyond the vocabulary or a sequence that is full; an Error in
  // the middle (a failed read) leaves the sequences of the batch unusable, and nothing else.
  void forward(const Batch& batch, std::span<float> logits, const Tap& tap = {});

  const ModelConfig& config() const { return config_; }
  const Prefetcher& prefetcher() const { return prefetcher_; }

 private:
  void check_batch(const Batch& batch) const;

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Backend& backend_;
  ExpertStore& store_;
  Prefetcher prefetcher_;
  Trace* trace_;
};

}  // namespace moeflux
