// The logits of one position in blocks of 64 ids, with each block's largest. Most questions of a sampler
// concern few tokens; the largest values let it skip the blocks without any of them.
//
// Rank order, everywhere: the larger logit first, of equal ones the lower id. -0 counts as 0.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gen/chance.h"
#include "model/backend.h"
#include "ops/ops.h"
#include "ops/shortlist.h"

namespace moeflux {

class LogitBlocks {
 public:
  static constexpr size_t kBlock = kLogitBlock;  // one word of a mask
  static constexpr float kNever = -std::numeric_limits<float>::infinity();

  LogitBlocks(size_t n_vocab, const Ops& ops);

  // Keeps a view of them until they are changed: they must outlive all questions. Throws Error{Corrupt}
  // naming the position in the text and the token of a NaN or +infinity.
  void load(std::span<const float> logits, size_t position);
  // Changes, in a copy; refresh() must follow before anything below is asked.
  void set(Token id, float logit);
  void keep_only(std::span<const uint64_t> mask);  // bit id % 64 of word id / 64: may be chosen
  void refresh();

  size_t n_vocab() const { return n_vocab_; }
  float operator[](Token id) const { return block(id / kBlock)[id % kBlock]; }
  float most() const { return most_; }  // kNever where no token may be chosen
  Token best() const;

  // The rank keys of all logits >= floor, in the order of their ids. floor > kNever.
  void gather(float floor, std::vector<uint64_t>& keys) const;
  // A logit that at least k tokens reach, and few more; the lowest finite one where k is large.
  float floor_of_best(size_t k);
  // The sum of all weights; sums[b] that of block b.
  uint64_t weigh(const Weighing& weighing, std::vector<uint64_t>& sums) const;
  // The token at which the running sum of weights, by id, exceeds `target` < the total of `sums`.
  Token pick(const Weighing& weighing, std::span<const uint64_t> sums, uint64_t target) const;
  // The standard deviation of the logits of all tokens that may be chosen.
  double deviation() const;

 private:
  const float* block(size_t b) const { return b < whole_ ? values_ + b * kBlock : tail_; }
  bool find_maxima();  // whether all values of whole blocks are finite
  void own();

  const Ops& ops_;
  size_t n_vocab_, whole_;         // tokens, blocks without padding
  const float* values_ = nullptr;  // the caller's or copy_'s
  std::vector<float> copy_;        // [whole blocks], empty until something changes
  float tail_[kBlock];             // the last block, padded with kNever
  std::vector<float> maxima_;      // [blocks]
  std::vector<float> scratch_;     // [blocks]
  float most_ = kNever;
  bool stale_ = false;
};

}  // namespace moeflux
