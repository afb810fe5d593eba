// What kernels read of a step and of its sequences: plain structs in device memory, so that a recorded graph
// sees the token, position and cache of the step that it is replayed for.
#pragma once

#include <cstdint>

namespace moeflux::cuda {

// Cache or state of one sequence and layer. Keys and values are [head][row][dim]; position p is at row
// p % rows.
struct LayerCache {
  void *keys, *values;             // values null: the first components of the key
  float *key_scale, *value_scale;  // [head][row], int8 only
  float *conv, *state;             // delta net: [conv_width - 1][channels], [head][key_dim][value_dim]
  uint32_t rows, unused;
};

struct TokenInfo {
  const LayerCache* layers;  // of its sequence, [n_layers]
  uint32_t token, position;
};

struct SliceInfo {  // consecutive tokens of one sequence
  const LayerCache* layers;
  uint32_t first, count;  // index in the batch, tokens
  uint32_t position, unused;
};

}  // namespace moeflux::cuda
