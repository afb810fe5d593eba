#include "cuda/shortlist.h"

#include <algorithm>
#include <cmath>

#include "cuda/vectors_test.h"

namespace moeflux::cuda {
namespace {

class CudaShortlist : public OnDevice {};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<Shortlist> list(const std::vector<std::vector<float>>& rows,
                            const std::vector<ShortlistWish>& wishes) {
  const size_t n = rows.size(), n_vocab = rows[0].size();
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  const DeviceArray<float> logits(all), maxima(n * shortlist_blocks(n_vocab));
  const DeviceArray<ShortlistWish> there(wishes);
  const DeviceArray<Shortlist> out(n);
  shortlist(logits.get(), n, n_vocab, there.get(), maxima.get(), out.get(), nullptr);
  return out.values();
}

// All tokens down to some rank, at least as many as the reference has.
void expect_good(const Shortlist& got, const std::vector<float>& logits, const ShortlistWish& wish,
                 const std::string& name) {
  Shortlist want;
  shortlist_ref(logits, wish, want);
  EXPECT_EQ(got.total, want.total) << name;
  std::vector<uint64_t> keys(got.listed().begin(), got.listed().end()), ranked;
  ASSERT_GE(keys.size(), want.n) << name;
  std::ranges::sort(keys);
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > -kInfinity) ranked.push_back(rank_key(logits[i], static_cast<Token>(i)));
  std::ranges::sort(ranked);
  ranked.resize(keys.size());
  EXPECT_EQ(keys, ranked) << name;
  if (wish.best == 1) {
    const auto ties = std::ranges::count(logits, logit_of(ranked[0]));
    EXPECT_EQ(keys.size(), static_cast<size_t>(ties)) << name;
  }
}

std::vector<float> some_logits(size_t n, uint32_t seed) {
  std::vector<float> x = noise_vector(n, seed, 12);
  for (size_t i = 0; i < n; i += 7) x[i] = std::nearbyint(x[i]);  // ties, and zeros of both signs
  for (size_t i = 3; i < n; i += 100) x[i] = -kInfinity;
  return x;
}

TEST_F(CudaShortlist, HasTheLikeliestTokensAndTheSumOfAllWeights) {
  uint32_t seed = 1;
  for (const size_t n_vocab : {1, 63, 64, 65, 1000, 20001, 151936}) {
    std::vector<std::vector<float>> rows;
    std::vector<ShortlistWish> wishes;
    for (const uint32_t best : {1u, 2u, 20u, 64u, kMostWished})
      for (const float inverse_temperature : {0.0f, 1.0f, 0.7f, 5.0f}) {
        rows.push_back(some_logits(n_vocab, ++seed));
        wishes.push_back({best, inverse_temperature});
      }
    const std::vector<Shortlist> got = list(rows, wishes);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string name = std::to_string(n_vocab) + " tokens, best " + std::to_string(wishes[i].best);
      if (n_vocab == 20001 && wishes[i].best == kMostWished && got[i].listed().empty())
        continue;  // too many ties
      expect_good(got[i], rows[i], wishes[i], name);
    }
  }
}

TEST_F(CudaShortlist, TheZerosAreOne) {
  std::vector<float> x(200, -1);
  x[150] = 0.0f;
  x[20] = -0.0f;
  const Shortlist got = list({x}, {{1, 0}})[0];
  std::vector<uint64_t> keys(got.listed().begin(), got.listed().end());
  std::ranges::sort(keys);
  EXPECT_EQ(keys, (std::vector<uint64_t>{rank_key(0, 20), rank_key(0, 150)}));
}

TEST_F(CudaShortlist, IsEmptyWhereAllLogitsMustBeSeen) {
  const std::vector<float> flat(5000, 2.5f);
  std::vector<float> nan = some_logits(5000, 3), infinite = nan;
  nan[4999] = NAN;
  infinite[70] = kInfinity;
  const std::vector<float> hopeless(5000, -kInfinity);
  for (const Shortlist& s : list({flat, nan, infinite, hopeless}, {{20, 1}, {20, 1}, {1, 0}, {20, 1}}))
    EXPECT_TRUE(s.listed().empty());
}

}  // namespace
}  // namespace moeflux::cuda
