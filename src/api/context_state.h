// What a context handle stands for: sequences of tokens on one model. For one call at a time (SingleUse), but
// for the flag that says that the handle is gone.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "api/handles.h"
#include "api/model_state.h"
#include "api/single_use.h"
#include "gen/history.h"

namespace moeflux::api {

struct CancelState {
  std::atomic<bool> is_set = false;
};

// Tokens, and the state that the model has after them. The last token may be pending: chosen, and not
// evaluated before something follows it. States share memory, so that all functions but those that only ask
// are called with the model's turn held, and a sequence is destroyed with it.
class TokenSequence {
 public:
  size_t size() const { return evaluated().size() + pending_.size(); }
  std::span<const Token> evaluated() const;
  std::span<const Token> pending() const { return pending_; }
  std::vector<Token> tokens() const;
  bool broken() const { return history_ && history_->broken(); }
  void check_usable() const;  // throws a Failure where it is broken

  // The state, made if need be; throws Error{OutOfMemory}, or a Failure where it is broken.
  History& history(const std::shared_ptr<ModelState>& model, const HistoryOptions& options);
  void accept(std::span<const Token> tokens);  // the engine has evaluated these, the pending one first
  void leave_pending(Token token) { pending_ = {token}; }
  void drain();  // evaluates what is pending

  void clear();
  void release_unused();  // gives memory back that was taken for tokens that did not come
  void remove(size_t begin, size_t end);
  // Goes back to the furthest position at or before this one that needs no evaluation, and returns it.
  size_t go_back(size_t position);
  void copy_from(const TokenSequence& other, const std::shared_ptr<ModelState>& model);
  void replace(std::unique_ptr<History> history, const std::shared_ptr<ModelState>& model);
  std::vector<size_t> checkpoints() const;  // their positions
  void restore_to(size_t position);
  History& held();  // throws a Failure where it holds nothing or is broken

 private:
  void make_room(const std::shared_ptr<ModelState>& model);

  std::unique_ptr<SequenceRoom> room_;
  std::unique_ptr<History> history_;
  std::vector<Token> pending_;  // at most one
};

class ContextState {
 public:
  ContextState(std::shared_ptr<ModelState> model, size_t n_sequences, const HistoryOptions& options)
      : model_(std::move(model)), options_(options), sequences_(n_sequences) {}
  ~ContextState();

  ModelState& model() { return *model_; }
  const std::shared_ptr<ModelState>& shared_model() { return model_; }
  const HistoryOptions& history_options() const { return options_; }
  size_t n_sequences() const { return sequences_.size(); }
  TokenSequence& sequence(uint32_t number);  // throws a Failure
  History& history(TokenSequence& sequence) { return sequence.history(model_, options_); }
  SingleUse use;

  // What is at work ends at its next step.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }

 private:
  const std::shared_ptr<ModelState> model_;
  const HistoryOptions options_;
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

// Work on one sequence of a context, with the model's turn held.
template <class Work>
moeflux_status with_sequence(moeflux_context* context, uint32_t number, Work&& work) {
  return call([&] {
    const auto state = find_handle(context);
    const auto use = state->use.begin("context");
    TokenSequence& sequence = state->sequence(number);
    const std::lock_guard turn(state->model().turns);
    work(*state, sequence);
  });
}

}  // namespace moeflux::api
