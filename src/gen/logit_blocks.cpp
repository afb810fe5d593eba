#include "gen/logit_blocks.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr size_t kBlock = LogitBlocks::kBlock;
constexpr float kMostFinite = std::numeric_limits<float>::max();

void refuse_damaged(std::span<const float> logits, size_t first, size_t position) {
  const auto bad = std::ranges::find_if(logits.subspan(first), [](float x) { return !(x <= kMostFinite); });
  if (bad != logits.end())
    fail(Errc::Corrupt,
         "position {}: the logit of token {} is {}: the model's weights or its input are damaged", position,
         bad - logits.begin(), *bad);
}

struct Moments {
  double sum = 0, squares = 0;
  uint64_t count = 0;
};

// Eight partial sums (ids that agree modulo 8), added in order; blocks are added in order by the caller.
Moments block_moments(const float* x, double origin) {
  double sum[8] = {}, squares[8] = {};
  uint64_t count = 0;
  for (size_t i = 0; i < kBlock; i += 8)
    for (size_t j = 0; j < 8; ++j) {
      const bool counts = x[i + j] > LogitBlocks::kNever;
      const double d = counts ? static_cast<double>(x[i + j]) - origin : 0.0;
      sum[j] += d;
      squares[j] += d * d;
      count += counts;
    }
  Moments m{sum[0], squares[0], count};
  for (size_t j = 1; j < 8; ++j) m.sum += sum[j], m.squares += squares[j];
  return m;
}

}  // namespace

LogitBlocks::LogitBlocks(size_t n_vocab, const Ops& ops)
    : ops_(ops), n_vocab_(n_vocab), whole_(n_vocab / kBlock), maxima_((n_vocab + kBlock - 1) / kBlock) {
  if (n_vocab == 0 || n_vocab > kMostTokens)
    fail(Errc::Unsupported, "a vocabulary of {} tokens, want 1 to {}", n_vocab, kMostTokens);
}

void LogitBlocks::load(std::span<const float> logits, size_t position) {
  check(logits.size() == n_vocab_, "one logit per token of the vocabulary");
  values_ = logits.data();
  std::fill(std::begin(tail_), std::end(tail_), kNever);
  std::ranges::copy(logits.subspan(whole_ * kBlock), tail_);
  // -infinity is not finite either, but allowed; a look at single values is needed only then.
  refuse_damaged(logits, find_maxima() ? whole_ * kBlock : 0, position);
}

bool LogitBlocks::find_maxima() {
  const bool finite = ops_.block_maxima(values_, whole_, maxima_.data());
  if (whole_ < maxima_.size()) ops_.block_maxima(tail_, 1, &maxima_[whole_]);
  most_ = *std::ranges::max_element(maxima_);
  stale_ = false;
  return finite;
}

void LogitBlocks::own() {
  if (values_ == copy_.data()) return;
  copy_.assign(values_, values_ + whole_ * kBlock);
  values_ = copy_.data();
}

void LogitBlocks::set(Token id, float logit) {
  own();
  (id < whole_ * kBlock ? copy_[id] : tail_[id % kBlock]) = std::min(logit, kMostFinite);
  stale_ = true;
}

void LogitBlocks::keep_only(std::span<const uint64_t> mask) {
  check(mask.size() >= maxima_.size(), "a bit of the mask for every token");
  own();
  for (size_t b = 0; b < maxima_.size(); ++b) {
    if (mask[b] == ~uint64_t{0}) continue;
    float* x = b < whole_ ? &copy_[b * kBlock] : tail_;
    for (size_t i = 0; i < kBlock; ++i) x[i] = mask[b] >> i & 1 ? x[i] : kNever;
  }
  stale_ = true;
}

void LogitBlocks::refresh() {
  if (stale_) find_maxima();
}

Token LogitBlocks::best() const {
  const auto b = static_cast<size_t>(std::ranges::find(maxima_, most_) - maxima_.begin());
  return static_cast<Token>(b * kBlock + (std::find(block(b), block(b) + kBlock, most_) - block(b)));
}

void LogitBlocks::gather(float floor, std::vector<uint64_t>& keys) const {
  size_t n = 0;
  for (size_t b = 0; b < maxima_.size(); ++b) {
    if (maxima_[b] < floor) continue;
    if (keys.size() < n + kBlock) keys.resize(std::max(n + kBlock, 2 * keys.size()));
    const float* x = block(b);
    // Every key is written and only those that count are kept: no branch to mispredict.
    for (size_t i = 0; i < kBlock; ++i) {
      keys[n] = rank_key(x[i], static_cast<Token>(b * kBlock + i));
      n += x[i] >= floor;
    }
  }
  keys.resize(n);
}

float LogitBlocks::floor_of_best(size_t k) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  if (k == 0 || k > maxima_.size()) return kLowest;
  // Each of the k blocks with the largest maxima has a token that reaches the smallest of these.
  scratch_ = maxima_;
  const auto kth = scratch_.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(scratch_.begin(), kth, scratch_.end(), std::greater<>());
  return std::max(*kth, kLowest);
}

uint64_t LogitBlocks::weigh(const Weighing& weighing, std::vector<uint64_t>& sums) const {
  sums.resize(maxima_.size());
  ops_.block_weights(values_, maxima_.data(), whole_, weighing, sums.data());
  if (whole_ < maxima_.size()) ops_.block_weights(tail_, &maxima_[whole_], 1, weighing, &sums[whole_]);
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

Token LogitBlocks::pick(const Weighing& weighing, std::span<const uint64_t> sums, uint64_t target) const {
  size_t b = 0, i = 0;
  for (; target >= sums[b]; ++b) target -= sums[b];
  uint64_t weights[kBlock];
  ops_.token_weights(block(b), kBlock, weighing, weights);
  for (; target >= weights[i]; ++i) target -= weights[i];
  return static_cast<Token>(b * kBlock + i);
}

double LogitBlocks::deviation() const {
  Moments all;
  for (size_t b = 0; b < maxima_.size(); ++b) {
    const Moments m = block_moments(block(b), most_);
    all.sum += m.sum;
    all.squares += m.squares;
    all.count += m.count;
  }
  const auto n = static_cast<double>(all.count);
  const double mean = all.sum / n;
  return std::sqrt(std::max(all.squares / n - mean * mean, 0.0));
}

}  // namespace moeflux
