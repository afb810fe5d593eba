#include "gen/penalties.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace moeflux {

Penalties::Penalties(const PenaltyOptions& options, size_t n_vocab) : options_(options) {
  if (counts_uses()) uses_.resize(n_vocab);
  if (options_.dry.multiplier == 0) return;
  longest_.resize(n_vocab);
  breaker_.resize(n_vocab);
  for (const Token t : options_.dry.breakers) breaker_[t] = true;
}

bool Penalties::counts_uses() const {
  return options_.repetition != 1 || options_.frequency != 0 || options_.presence != 0;
}

void Penalties::read(std::span<const Token> prompt) {
  for (const Token t : prompt) append(t, false);
}

void Penalties::append(Token token, bool generated) {
  text_.push_back({token, generated});
  if (!counts_uses()) return;
  count(text_.back(), true);
  if (text_.size() > options_.window) count(text_[text_.size() - 1 - options_.window], false);
}

void Penalties::count(const Past& past, bool add) {
  check(past.token < uses_.size(), "a token of the vocabulary");
  Uses& uses = uses_[past.token];
  const uint32_t one = add ? 1 : ~0u;  // adding the latter takes one away
  uses.all += one;
  uses.generated += past.generated ? one : 0;
  if (uses.listed) return;
  uses.listed = true;
  listed_.push_back(past.token);
}

bool Penalties::active() const { return counts_uses() || options_.dry.multiplier != 0; }

void Penalties::apply(LogitBlocks& logits) {
  if (counts_uses()) apply_uses(logits);
  if (options_.dry.multiplier != 0) apply_dry(logits);
}

// Each token is changed on its own: the order of the list does not matter.
void Penalties::apply_uses(LogitBlocks& logits) const {
  const auto repetition = static_cast<float>(options_.repetition);
  const auto frequency = static_cast<float>(options_.frequency);
  const auto presence = static_cast<float>(options_.presence);
  for (const Token t : listed_) {
    const Uses& uses = uses_[t];
    if (uses.all == 0) continue;
    float x = logits[t];
    x = x > 0 ? x / repetition : x * repetition;
    if (uses.generated > 0) x = (x - static_cast<float>(uses.generated) * frequency) - presence;
    logits.set(t, x);
  }
}

// repeats_[i] for i >= 1: how many tokens before and with the one i places before the last equal those before
// and with the last. This is the Z function of the text read backwards, in time linear in the window.
void Penalties::find_repetitions() {
  const size_t n = std::min(text_.size(), options_.dry.window);
  const auto back = [&](size_t i) { return text_[text_.size() - 1 - i].token; };
  repeats_.assign(n, 0);
  size_t begin = 0, end = 0;  // the stretch found so far that reaches furthest back
  for (size_t i = 1; i < n; ++i) {
    size_t length = i < end ? std::min(repeats_[i - begin], end - i) : 0;
    while (i + length < n && back(length) == back(i + length)) ++length;
    repeats_[i] = length;
    if (i + length > end) begin = i, end = i + length;
  }
}

void Penalties::apply_dry(LogitBlocks& logits) {
  find_repetitions();
  const auto back = [&](size_t i) { return text_[text_.size() - 1 - i].token; };
  size_t limit = 0;  // tokens since the last breaker
  while (limit < repeats_.size() && !breaker_[back(limit)]) ++limit;
  // The token that followed an earlier copy of the text's end would lengthen the repetition.
  for (size_t i = 1; i < repeats_.size(); ++i)
    longest_[back(i - 1)] = std::max(longest_[back(i - 1)], std::min(repeats_[i], limit));
  for (size_t i = 1; i < repeats_.size(); ++i) {
    const Token next = back(i - 1);
    const size_t length = std::exchange(longest_[next], 0);
    if (length < std::max<size_t>(options_.dry.allowed_length, 1) || breaker_[next]) continue;
    logits.set(next, logits[next] - dry_penalty(length));
  }
}

// multiplier * base ^ (length - allowed), by repeated products: a library's power differs between machines.
float Penalties::dry_penalty(size_t length) const {
  constexpr double kEnough = 1e30;  // no logit survives this
  double penalty = options_.dry.multiplier;
  for (size_t n = options_.dry.allowed_length; n < length && penalty < kEnough && options_.dry.base > 1; ++n)
    penalty *= options_.dry.base;
  return static_cast<float>(std::min(penalty, kEnough));
}

}  // namespace moeflux
