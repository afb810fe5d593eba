// Attention on tensor cores, for bf16 caches in fast precision: queries and weights are rounded to bf16 where
// they enter a product, sums are floats. The same job as attend (attention.h) and the same Attend; another
// order of sums.
#pragma once

#include "cuda/attention.h"

namespace moeflux::cuda {

// Whether these kernels compute attention of this kind.
bool flash_can(const Attend& a);

// Few tokens: positions are cut into parts of flash_part positions, which are computed
// side by side. Positions are read on the device, so that a recorded launch serves all steps whose positions
// are below `most_positions`.
size_t flash_part(size_t most_positions);
size_t flash_parts(size_t most_positions, size_t window);
constexpr size_t flash_parts_floats(size_t n, size_t n_heads, size_t value_dim, size_t n_parts) {
  return n * n_heads * n_parts * (value_dim + 2);
}
// The tokens are of different sequences: of each, prepare_heads' work is done on the way (p.q_out and a.q are
// not used). a.parts and a.n_parts (flash_parts) are set. The result is quantised as well where y has room
// for it; y.f is a.out. counters: flash_counters zeros, which they are again afterwards.
size_t flash_counters(const Attend& a, size_t most_positions);
void flash_decode(const PrepareHeads& p, const Attend& a, size_t most_positions, const Vectors& y,
                  uint32_t* counters, cudaStream_t stream);

// A run of tokens of one sequence, of which the first is at `position`.
void flash_prefill(const Attend& a, size_t position, cudaStream_t stream);

}  // namespace moeflux::cuda
