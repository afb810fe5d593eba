// The likeliest tokens of a position, for a sampler that needs no others: made where the logits lie, which
// then need not move. The total is a whole number, so that every device makes the same; a device may list
// more tokens than it must.
#pragma once

#include <bit>
#include <span>

#include "base/token.h"
#include "ops/token_weight.h"

namespace moeflux {

// A logit and its id as one number that grows from the best rank to the worst: the larger logit first, of
// equal ones the lower id. -0 counts as 0.
inline uint64_t rank_key(float logit, Token id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes 0
  const uint32_t descending = bits >> 31 ? bits : ~bits & 0x7fffffff;
  return uint64_t{descending} << 32 | id;
}
inline Token token_of(uint64_t key) { return static_cast<Token>(key); }
inline float logit_of(uint64_t key) {
  const auto descending = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(descending >> 31 ? descending : ~descending & 0x7fffffff);
}

inline constexpr uint32_t kMostWished = 256, kMostListed = 1024;

struct ShortlistWish {
  uint32_t best = 1;              // so many of the likeliest tokens, 1 to kMostWished
  float inverse_temperature = 0;  // of `total`; 0: it is not wanted
};

// Plain memory, which a device can write.
struct Shortlist {
  uint64_t total;  // the weights of all tokens, added up, where that is wanted
  uint32_t n;      // above kMostListed: as many would belong here, and there is no list
  uint32_t unused;
  uint64_t keys[kMostListed];  // [n] rank keys, in any order

  // Empty: there is no list, and a sampler must see all logits.
  std::span<const uint64_t> listed() const { return {keys, n > kMostListed ? 0 : n}; }
};

// Lists all tokens with a finite logit down to some rank: at least `best` of them, or as many as there are.
// Nothing where that would be more than kMostListed or where a logit is NaN or +infinity.
void shortlist_ref(std::span<const float> logits, const ShortlistWish& wish, Shortlist& out);

}  // namespace moeflux
