// What the text so far does to the next token's logits: penalties for tokens that were used, and DRY, which
// penalises a token that would go on with a repetition. Remembers the text; knows nothing of chances.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gen/logit_blocks.h"

namespace moeflux {

inline constexpr size_t kWholeText = std::numeric_limits<size_t>::max();

struct DryOptions {
  double multiplier = 0;  // 0: off
  double base = 1.75;
  size_t allowed_length = 2;         // shorter repetitions are free
  size_t window = kWholeText;        // tokens of the text that are searched
  std::vector<Token> breakers = {};  // no repetition reaches across one, and none is penalised itself
};

struct PenaltyOptions {
  double repetition = 1;       // divides positive logits and multiplies negative ones; 1: off
  double frequency = 0;        // subtracted once per use
  double presence = 0;         // subtracted once for all uses
  size_t window = kWholeText;  // the last tokens of the text that count
  DryOptions dry = {};
};

// `repetition` concerns all text in the window, prompt included; `frequency` and `presence` only what was
// generated: a prompt that names things should not forbid the answer to name them.
class Penalties {
 public:
  Penalties(const PenaltyOptions& options, size_t n_vocab);

  void read(std::span<const Token> prompt);
  void accept(Token generated) { append(generated, true); }
  bool active() const;  // else apply changes nothing, whatever the text
  void apply(LogitBlocks& logits);

 private:
  struct Past {
    Token token;
    bool generated;
  };
  struct Uses {
    uint32_t all = 0, generated = 0;
    bool listed = false;
  };

  bool counts_uses() const;
  void append(Token token, bool generated);
  void count(const Past& past, bool add);
  void apply_uses(LogitBlocks& logits) const;
  void find_repetitions();
  void apply_dry(LogitBlocks& logits);
  float dry_penalty(size_t length) const;

  PenaltyOptions options_;
  std::vector<Past> text_;
  std::vector<Uses> uses_;       // [n_vocab] where uses count
  std::vector<Token> listed_;    // tokens that have been in the window
  std::vector<bool> breaker_;    // [n_vocab] where DRY is on
  std::vector<size_t> repeats_;  // [i]: see find_repetitions
  std::vector<size_t> longest_;  // [n_vocab] where DRY is on; 0 between calls
};

}  // namespace moeflux
