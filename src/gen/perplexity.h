// How well a model predicts documents, and how far its predictions are from those of a reference: another
// package, backend or precision. Logits are held for one step at a time, whatever the documents' length.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "gen/documents.h"
#include "gen/engine.h"

namespace moeflux {

// Mean of values and its standard error, as if they were independent. Neighbouring tokens are not, quite: the
// true error is somewhat larger.
class Average {
 public:
  void add(double value);
  uint64_t count() const { return n_; }
  double mean() const { return mean_; }
  double largest() const { return largest_; }
  double standard_error() const;  // NaN for fewer than two values

 private:
  uint64_t n_ = 0;
  double mean_ = 0, squares_ = 0;  // squares_: sum of squared distances from the mean
  double largest_ = -std::numeric_limits<double>::infinity();
};

struct LayerRoutes {
  uint64_t layer;
  uint64_t n_picks, n_different;  // a pick differs if the reference's choice for the token lacks that expert
};

struct Divergence {
  Average kl;               // KL(reference || this) in nats, per predicted token
  uint64_t n_same_top = 0;  // tokens for which both find the same token likeliest; ties to the lower id
  std::vector<LayerRoutes> routes;  // empty where the two do not choose among the same experts
  double top_agreement() const;     // 0..1
  LayerRoutes all_routes() const;   // of all layers
};

struct PerplexityResult {
  uint64_t n_documents = 0, n_skipped = 0;  // evaluated; of fewer than two tokens
  Average nll;                              // -ln p(token), per predicted token
  std::optional<Divergence> reference;
  double perplexity() const;
};

class PerplexityMeter {
 public:
  struct Subject {
    fs::path package;
    EngineOptions options;
  };

  // Loads the model, and the reference beside it. Without a stated budget of expert slots, the model gets at
  // most half of the memory and the reference what then is left. The reference has the model's context.
  explicit PerplexityMeter(const Subject& subject, const std::optional<Subject>& reference = {});

  // Every document starts from an empty context and its first token is not predicted. A document longer than
  // the context is cut into windows of that many tokens, each from an empty context; a window starts with the
  // last token of the one before, so that every other token is predicted once. `on_tokens` hears how many
  // tokens have been evaluated since its last call; `tap` sees the model's stages, not the reference's.
  PerplexityResult measure(const Documents& documents, const std::function<void(uint64_t)>& on_tokens = {},
                           const Tap& tap = {});

  const Engine& engine() const { return engine_; }

 private:
  const uint64_t memory_;  // for both, as it was before anything was loaded
  Engine engine_;
  std::optional<Engine> reference_;
};

}  // namespace moeflux
