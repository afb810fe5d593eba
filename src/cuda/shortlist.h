// ops/shortlist.h on the device, for several positions in two launches. As in linear.h: device pointers,
// nothing allocated, nothing waited for.
#pragma once

#include "cuda/device.h"
#include "ops/shortlist.h"

namespace moeflux::cuda {

bool shortlist_can(size_t n_vocab);
constexpr size_t shortlist_blocks(size_t n_vocab) { return (n_vocab + kLogitBlock - 1) / kLogitBlock; }

// logits [n, n_vocab]; wishes, out [n]; maxima: scratch, [n, shortlist_blocks].
void shortlist(const float* logits, size_t n, size_t n_vocab, const ShortlistWish* wishes, float* maxima,
               Shortlist* out, cudaStream_t stream);

}  // namespace moeflux::cuda
