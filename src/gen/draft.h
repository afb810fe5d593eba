// Guesses of the next tokens, so that one step can evaluate several: what followed the last few tokens where
// they stood in the text before, or what a layer of the model says (mtp_draft.h). A guess that the sampler
// would not have chosen is thrown away, so that the text is the one that would have been generated without;
// only its speed changes. Where guesses are mostly wrong, or experts that wrong guesses ask for make steps
// slow, guessing is paused by itself.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/token.h"

namespace moeflux {

enum class DraftSource : uint8_t {
  Auto,   // Mtp where package and backend have it, otherwise Ngram
  Ngram,  // the text so far
  Mtp     // the multi-token-prediction layer
};

struct DraftStats {
  DraftSource source = DraftSource::Ngram;  // of the guesses; never Auto
  uint64_t steps = 0;                       // that evaluated guesses
  uint64_t guessed = 0, right = 0;          // tokens
  uint64_t pauses = 0;                      // because guessing was slower
  bool barred = false;  // at no step could the state have gone back, so that nothing was guessed
};
std::string describe(const DraftStats& stats);  // for people; empty where there is nothing to say

class NgramDraft {
 public:
  explicit NgramDraft(std::span<const Token> text);
  void add(Token token);
  std::vector<Token> guess(size_t most) const;

 private:
  static constexpr size_t kLongest = 4, kShortest = 2;  // tokens that must have stood there before
  uint64_t key(size_t n) const;                         // of the last n tokens

  std::vector<Token> text_;
  std::unordered_map<uint64_t, size_t> after_;  // where the text went on after these tokens, the last time
};

// Whether guessing pays, from how long steps take. While it does, a plain step now and then tells what one
// takes by now: the first ones wait for experts that later ones find in memory. Pauses grow from one to the
// next.
class DraftGovernor {
 public:
  bool may_guess();                                                   // asked once before every step
  void step_done(size_t guessed, size_t new_tokens, double seconds);  // guessed: 0 for a plain step
  uint64_t pauses() const { return pauses_; }

 private:
  static constexpr uint64_t kPlain = 4, kWindow = 12, kPause = 48, kMostPause = 4 * kPause;  // steps
  std::array<double, kPlain> plain_s_{};  // the last plain steps
  uint64_t n_plain_ = 0, n_guessed_ = 0, plain_left_ = 0, pauses_ = 0, next_pause_ = kPause;
  uint64_t n_plain_before_ = 0;  // the window
  double guessed_s_ = 0;
  uint64_t guessed_tokens_ = 0;
};

}  // namespace moeflux
