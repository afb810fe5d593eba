// ops/router.h on the device: a thread block per token, ties to the lower index.
#pragma once

#include "cuda/device.h"
#include "ops/router.h"

namespace moeflux::cuda {

// logits [n, n_experts] -> ids and weights [n, top_k], best first. rule.score_bias lies in device memory.
void route(const RouterRule& rule, size_t n_experts, const float* logits, size_t n, uint32_t* ids,
           float* weights, cudaStream_t stream);

// Experts that one launch can choose from.
inline constexpr size_t kMostRoutedExperts = 4096;

}  // namespace moeflux::cuda
