#include "gen/mtp_draft.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {

void MtpDraft::read(std::span<const Token> tokens, std::span<const float> hidden) {
  const size_t d = engine_.config().d_model;
  check(!tokens.empty() && hidden.size() == tokens.size() * d, "a state for every token");
  tokens_.insert(tokens_.end(), tokens.begin() + (hidden_.empty() ? 1 : 0), tokens.end());
  hidden_.insert(hidden_.end(), hidden.begin(), hidden.end());
  if (tokens_.size() >= kMostWaiting) catch_up();
}

void MtpDraft::catch_up() {
  const size_t d = engine_.config().d_model;
  if (tokens_.size() <= kFewWaiting) return;
  evaluate(tokens_, std::span(hidden_).first(tokens_.size() * d), {}, nullptr);
  hidden_.erase(hidden_.begin(), hidden_.end() - static_cast<ptrdiff_t>(d));
  tokens_.clear();
}

std::vector<Token> MtpDraft::guess(Token next, size_t most) {
  check(!hidden_.empty() && most > 0, "something to go on from");
  tokens_.push_back(next);
  std::vector<float> logits(engine_.config().n_vocab), hidden;
  const auto likeliest = [&] {
    return static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
  };
  evaluate(tokens_, hidden_, logits, &hidden);
  tokens_.clear();
  hidden_.clear();
  // What follows is made from guesses; it makes room for pairs of what the model itself says.
  const size_t kept = sequence_->position();
  std::vector<Token> guesses{likeliest()};
  while (guesses.size() < most) {
    evaluate({&guesses.back(), 1}, std::vector(hidden), logits, &hidden);
    guesses.push_back(likeliest());
  }
  check(sequence_->cut(kept), "a cache that can be cut");
  return guesses;
}

void MtpDraft::evaluate(std::span<const Token> tokens, std::span<const float> hidden, std::span<float> logits,
                        std::vector<float>* last_hidden) {
  const size_t d = engine_.config().d_model, chunk = engine_.options().chunk;
  std::vector<float> final_norm;
  for (size_t at = 0, n = 0; at < tokens.size(); at += n) {
    n = std::min(chunk, tokens.size() - at);
    const bool wanted = last_hidden && at + n == tokens.size();
    final_norm.resize(wanted ? n * d : 0);
    const Slice slice{sequence_.get(), 0, n};
    const auto last = static_cast<uint32_t>(n - 1);
    engine_.step({tokens.subspan(at, n),
                  {&slice, 1},
                  {&last, wanted ? 1u : 0u},
                  hidden.subspan(at * d, n * d),
                  final_norm},
                 wanted ? logits : std::span<float>());
  }
  if (last_hidden) last_hidden->assign(final_norm.end() - static_cast<ptrdiff_t>(d), final_norm.end());
}

}  // namespace moeflux
