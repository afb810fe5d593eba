// What a context handle stands for: sequences of tokens on one model. For one call at a time (SingleUse), but
// for the flag that says that the handle is gone.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "api/model_state.h"
#include "api/single_use.h"

namespace moeflux::api {

struct CancelState {
  std::atomic<bool> is_set = false;
};

// Tokens, and the state that the model has after them. The last token may be pending: chosen, and not
// evaluated before something follows it.
class TokenSequence {
 public:
  size_t size() const { return tokens_.size(); }  // with the pending one
  const std::vector<Token>& tokens() const { return tokens_; }
  std::span<const Token> evaluated() const { return std::span(tokens_).first(n_evaluated()); }
  std::span<const Token> pending() const { return std::span(tokens_).subspan(n_evaluated()); }
  size_t capacity(const ModelState& model) const { return model.engine.plan().ctx; }

  // The engine's sequence, made if need be; throws Error{OutOfMemory}, or a Failure where it is broken.
  Sequence& state(const std::shared_ptr<ModelState>& model);
  void accept(
      std::span<const Token> tokens);  // the engine has evaluated these, of which the first may be pending
  void leave_pending(Token token) { tokens_.push_back(token); }
  void set_broken() { broken_ = true; }
  bool broken() const { return broken_; }
  void check_usable() const;  // throws a Failure where it is broken
  void clear();
  // Forgets the tokens from `position` on; false where the state cannot go back, and nothing has changed.
  bool cut(size_t position);

 private:
  size_t n_evaluated() const { return state_ ? state_->position() : 0; }

  std::unique_ptr<SequenceRoom> room_;
  std::unique_ptr<Sequence> state_;
  std::vector<Token> tokens_;
  bool broken_ = false;
};

class ContextState {
 public:
  ContextState(std::shared_ptr<ModelState> model, size_t n_sequences)
      : model_(std::move(model)), sequences_(n_sequences) {}

  ModelState& model() { return *model_; }
  const std::shared_ptr<ModelState>& shared_model() { return model_; }
  size_t n_sequences() const { return sequences_.size(); }
  TokenSequence& sequence(uint32_t number);  // throws a Failure
  SingleUse use;

  // What is at work ends at its next step.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }

 private:
  std::shared_ptr<ModelState> model_;
  std::vector<TokenSequence> sequences_;
  std::atomic<bool> closed_ = false;
};

// Whether a call should end: its cancel was set, or its context is gone.
class CancelWatch {
 public:
  CancelWatch(const ContextState& context,
              const moeflux_cancel* cancel);  // throws a Failure for a wrong handle
  bool cancelled() const { return context_.closed() || (cancel_ && cancel_->is_set); }

 private:
  const ContextState& context_;
  std::shared_ptr<const CancelState> cancel_;
};

// Tokens of several sequences and the logits that are wanted of them, checked.
struct EvalRequest {
  std::span<const Token> tokens;
  std::vector<uint32_t> sequences;  // of each token
  std::vector<bool> wanted;         // its logits
};
// Evaluates it in steps. logits: [number of wanted ones, n_vocab].
void evaluate(ContextState& context, const EvalRequest& request, std::span<float> logits,
              const CancelWatch& watch);

}  // namespace moeflux::api
