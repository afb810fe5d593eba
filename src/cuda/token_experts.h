// The experts of a single token in one launch, where all that is read of them fits into the shared memory of
// the multiprocessors: the bytes of down come while gate and up are computed, and nothing is launched
// between.
#pragma once

#include "cuda/expert_parts.cuh"

namespace moeflux::cuda {

bool token_experts_can(const ExpertWork& work);
void token_experts(const ExpertWork& work, const std::byte* const* records, const Joined& joined,
                   const ExpertSum& sum, cudaStream_t stream);

}  // namespace moeflux::cuda
