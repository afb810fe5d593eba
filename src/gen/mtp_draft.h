// Guesses of the next tokens by the model's own multi-token-prediction layer. From what the model's final
// norm gave for a token, and the token after it, the layer guesses the one that follows; further guesses go
// on from its own result.
//
// The layer has a cache of its own with an entry for every such pair that it was told of; it begins empty
// with each generation, so that of a text whose state was kept from before it sees only what is new. That
// changes which guesses are right, never the text.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "gen/engine.h"

namespace moeflux {

class MtpDraft {
 public:
  // sequence: of Engine::make_mtp_sequence.
  MtpDraft(Engine& engine, std::unique_ptr<Sequence> sequence)
      : engine_(engine), sequence_(std::move(sequence)) {}

  // The model has evaluated these tokens, which follow those of earlier calls; hidden: [tokens, d_model],
  // what its final norm gave.
  void read(std::span<const Token> tokens, std::span<const float> hidden);
  // Evaluates what has waited long; otherwise that is part of the next guess.
  void catch_up();
  // What may follow `next`, which comes after all that was read and is the first token that will be read now.
  std::vector<Token> guess(Token next, size_t most);

 private:
  // While nothing is guessed, pairs wait to be evaluated together: that reads each expert once for all of
  // them.
  static constexpr size_t kFewWaiting = 16, kMostWaiting = 64;
  // The last token's logits, and what the layer's final norm gives for it; neither where last_hidden is null.
  void evaluate(std::span<const Token> tokens, std::span<const float> hidden, std::span<float> logits,
                std::vector<float>* last_hidden);

  Engine& engine_;
  const std::unique_ptr<Sequence> sequence_;
  // Pairs that wait. The token after the last state is not known yet: there is one state more, or none at
  // all.
  std::vector<float> hidden_;  // [.., d_model]
  std::vector<Token> tokens_;
};

}  // namespace moeflux
