#include <algorithm>
#include <limits>
#include <vector>

#include "ops/shortlist.h"

namespace moeflux {

void shortlist_ref(std::span<const float> logits, const ShortlistWish& wish, Shortlist& out) {
  out.total = out.n = 0;
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] <= std::numeric_limits<float>::max())) return;
    if (logits[i] >= std::numeric_limits<float>::lowest())
      keys.push_back(rank_key(logits[i], static_cast<Token>(i)));
  }
  std::ranges::sort(keys);
  if (keys.empty()) return;
  if (wish.inverse_temperature > 0)
    for (const float x : logits)
      out.total += weight_of(exponent_of({logit_of(keys[0]), wish.inverse_temperature}, x));
  out.n = static_cast<uint32_t>(std::min<size_t>(keys.size(), wish.best));
  std::copy_n(keys.begin(), out.n, out.keys);
}

}  // namespace moeflux
