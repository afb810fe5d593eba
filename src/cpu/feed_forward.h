// The feed-forward part on the processor: experts, shared experts and dense layers.
#pragma once

#include "cpu/products.h"

namespace moeflux {

// One expert (or dense part) of a layer and the tokens that go through it; results go to out, token by token.
struct ExpertInput {
  MlpWeights w;
  Activation activation;
  const uint32_t* pick;  // null: all tokens
  size_t n;
  float* out;  // [n, d_model]
};

class FeedForward {
 public:
  FeedForward(const ModelConfig& model, Products& products) : m_(model), products_(products) {}
  // h: the normed input of all tokens, quantised where the precision wants it. first: see WorkerPool::run.
  void run(std::span<const ExpertInput> inputs, const Panel& h, const std::function<void()>& first = {});

 private:
  const ModelConfig& m_;
  Products& products_;
  Activations hidden_;
};

}  // namespace moeflux
