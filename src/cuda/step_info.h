// What kernels read of a step and of its sequences: plain structs in device memory, so that a recorded graph
// sees the token, position and cache of the step that it is replayed for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeflux::cuda {

// Positions of a page of KV cache. The positions that a kernel takes at once lie in one page.
inline constexpr uint32_t kKvPage = 64;

// Where an attention layer's keys and values are in the pages of every sequence: position p is row
// p % kKvPage of page [p / kKvPage][group].
struct KvPlace {
  uint32_t group, n_groups;  // layers with the same window share pages
  bool own_values;           // else a value is the first components of its key
  // Bytes from the page's start on.
  uint64_t keys, values;            // [head][kKvPage][dim]
  uint64_t key_scale, value_scale;  // [head][kKvPage] floats, int8 only
};

struct alignas(16) TokenInfo {
  std::byte* const* pages;  // of its sequence, [page][group]
  uint32_t token, position;
};

// Tokens of a step, but for the first, that delta nets can go back by.
inline constexpr uint32_t kMostBack = 4;

struct SliceInfo {  // consecutive tokens of one sequence
  float* state;     // what all delta nets remember of it
  // States like that: what they remember after the first token, the second, ..
  float* after[kMostBack];
  uint32_t n_after;
  uint32_t first, count;  // index in the batch, tokens
  uint32_t position;
};

}  // namespace moeflux::cuda
