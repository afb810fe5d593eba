// Softmax attention of queries over one key/value head, in blocks of positions that are fixed by position, so
// that a query's bits depend on its own keys only: not on other queries, chunks or threads.
//
//   part (kPartition positions, aligned):  running maximum, sum of exponentials in 16 lanes and weighted sum
//   of values, block by block of kKvBlock positions; merge: parts in ascending order; finish: divide by the
//   sum, to which a sink adds one more exponential.
//
// Narrow attention is the same with queries and weights rounded to bf16 before they are multiplied; products
// below the least normal number may count as zero. What an f32 cache holds is met with floats all the same.
//
// Keys lie in tiles of 16 positions, [position / 16][dim][16], so that scores of 16 positions are computed at
// once without shuffles; values lie row by row. As int8, a key or value has one float scale.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeflux {

enum class KvType : uint8_t { F32, Bf16, Q8 };

inline constexpr size_t kKvBlock = 64, kPartition = 1024;

// One key/value head of a cache in pages of kKvBlock positions, and where its parts begin in each, in bytes
// from the page's start. Rows of a page that no query has seen yet must be numbers.
struct KvHead {
  KvType type;
  size_t key_dim, value_dim;
  bool own_values;                // else a value is the first value_dim components of its key
  std::byte* const* pages;        // position p is in page p / kKvBlock
  size_t keys, values;            // [kKvBlock / 16][key_dim][16], [kKvBlock][value_dim]
  size_t key_scale, value_scale;  // [kKvBlock] floats, Q8 only
};

// One query and what it has gathered so far: max, sum and out (not yet divided).
struct AttendRow {
  const float* q;      // [key_dim]
  float* out;          // [value_dim]
  float* max_sum;      // [2]
  size_t first, last;  // positions that it sees, inclusive
};

// Floats of scratch that attend and attend_narrow need for n rows.
constexpr size_t attend_scratch(size_t key_dim, size_t value_dim, size_t n) {
  return kKvBlock * (key_dim + value_dim + 16) + (16 + key_dim + 1) * n + 12 * kKvBlock;
}

constexpr size_t kv_value_bytes(KvType type) {
  return type == KvType::F32 ? 4 : type == KvType::Bf16 ? 2 : 1;
}

}  // namespace moeflux
