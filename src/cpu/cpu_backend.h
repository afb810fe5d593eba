// cpu: the backend that people run on processors. Every stage is vectorised (ops.h) and split over a pool of
// threads; a token's bits depend neither on the number of threads nor on how a prompt is cut into steps.
#pragma once

#include "model/backend.h"
#include "ops/ops.h"

namespace moeflux {

struct CpuOptions {
  Precision precision = Precision::Fast;
  KvType kv = KvType::Bf16;
  const Ops* ops = nullptr;
  size_t threads = 1;
};

std::unique_ptr<Backend> make_cpu_backend(const ModelConfig& model, const ModelWeights& weights,
                                          const CpuOptions& options);

}  // namespace moeflux
