#include "gen/draft.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/hash.h"

namespace moeflux {

std::string describe(const DraftStats& s) {
  if (s.barred) return "nothing guessed: the state of this model cannot go back on this backend";
  if (s.guessed == 0) return "";
  return fmt::format("{} of {} guesses {}right{}", s.right, s.guessed,
                     s.source == DraftSource::Mtp ? "of the multi-token-prediction layer " : "",
                     s.pauses ? fmt::format(", paused {} times: plain steps were faster", s.pauses) : "");
}

NgramDraft::NgramDraft(std::span<const Token> text) {
  for (const Token t : text) add(t);
}

uint64_t NgramDraft::key(size_t n) const { return xxh3(std::as_bytes(std::span(text_).last(n))) + n; }

void NgramDraft::add(Token token) {
  for (size_t n = kShortest; n <= std::min(kLongest, text_.size()); ++n) after_[key(n)] = text_.size();
  text_.push_back(token);
}

std::vector<Token> NgramDraft::guess(size_t most) const {
  for (size_t n = std::min(kLongest, text_.size()); n >= kShortest; --n) {
    const auto it = after_.find(key(n));
    if (it == after_.end()) continue;
    const size_t from = it->second, count = std::min(most, text_.size() - from);
    const auto begin = text_.begin() + static_cast<ptrdiff_t>(from);
    return {begin, begin + static_cast<ptrdiff_t>(count)};
  }
  return {};
}

bool DraftGovernor::may_guess() {
  if (n_plain_ < kPlain) return false;
  if (plain_left_ == 0) return true;
  --plain_left_;
  return false;
}

void DraftGovernor::step_done(size_t guessed, size_t new_tokens, double seconds) {
  if (guessed == 0) {
    plain_s_[n_plain_++ % kPlain] = seconds;
    return;
  }
  guessed_s_ += seconds;
  guessed_tokens_ += new_tokens;
  if (++n_guessed_ < kWindow) return;
  const double plain_s = std::accumulate(plain_s_.begin(), plain_s_.end(), 0.0) / kPlain;
  if (guessed_s_ > static_cast<double>(guessed_tokens_) * plain_s) {
    plain_left_ = next_pause_;
    next_pause_ = std::min(2 * next_pause_, kMostPause);
    ++pauses_;
  } else {
    plain_left_ = n_plain_ == n_plain_before_ ? 1 : 0;
    next_pause_ = kPause;
  }
  n_plain_before_ = n_plain_;
  guessed_s_ = 0;
  guessed_tokens_ = n_guessed_ = 0;
}

}  // namespace moeflux
