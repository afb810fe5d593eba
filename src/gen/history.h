// The tokens of one text, what the model remembers of them, and checkpoints: frozen copies of that from
// earlier in the text, from which it can be gone back to where the state itself cannot (recurrent layers,
// windows). What follows after going back has the bits of a fresh evaluation. For the engine's thread.
#pragma once

#include <limits>

#include "gen/engine.h"

namespace moeflux {

struct HistoryOptions {
  // Tokens between checkpoints that are made by themselves, for models whose state cannot go back; more are
  // made before a prompt's end, where another prompt may part from it. Rounded up to a multiple of 64; 0:
  // none.
  size_t checkpoint_every = 1024;
  // Memory of checkpoints beyond what the text's own state holds; the newest, which shares all of its memory
  // when it is made, comes on top as the text goes on. Where they would need more, some are dropped, so that
  // those that are left lie the closer, the nearer the text's end.
  uint64_t checkpoint_bytes = 1u << 30;
  size_t most_recompute = std::numeric_limits<size_t>::max();  // tokens that cut() may evaluate again
};

class History {
 public:
  explicit History(Engine& engine, const HistoryOptions& options = {});
  // A frozen state from earlier in the text; shared by copies of a history.
  using Checkpoint = std::shared_ptr<const Sequence>;
  // With a state that holds these tokens, and some from before, in ascending order.
  History(Engine& engine, const HistoryOptions& options, std::vector<Token> tokens,
          std::unique_ptr<Sequence> sequence, std::vector<Checkpoint> checkpoints = {});

  Engine& engine() const { return engine_; }
  std::span<const Token> tokens() const { return tokens_; }
  size_t position() const { return tokens_.size(); }
  size_t capacity() const { return sequence_->capacity(); }
  bool broken() const { return sequence_->broken(); }

  // Evaluates what follows and returns the logits of the last `rows` tokens. Where it throws, the text is as
  // far as it came, and broken: cut(position()) makes it usable again.
  std::vector<float> eval(std::span<const Token> tokens, size_t rows = 1, const Tap& tap = {});

  // For steps that someone else evaluates: the state, for a batch, and afterwards the tokens that it was
  // given.
  Sequence& sequence() { return *sequence_; }
  const Sequence& sequence() const { return *sequence_; }
  void accept(std::span<const Token> tokens);
  // So many tokens will follow, in one step or several: before the first of them, for a prompt's checkpoints.
  void expect(size_t n_tokens);

  // Forgets the tokens from `position` on: goes back to the nearest state at or before it and evaluates the
  // rest again. Throws, and nothing has changed: Error{InvalidArgument} beyond the text's end,
  // Error{Unsupported} if more tokens would be evaluated than most_recompute, and what an evaluation throws.
  void cut(size_t position);
  // The furthest position at or before this one that needs no evaluation, and going there.
  size_t nearest(size_t position) const;
  size_t go_back(size_t position);

  void checkpoint();                        // here
  void restore_to(size_t position);         // a checkpoint's; throws Error{NotFound} where there is none
  std::vector<size_t> checkpoints() const;  // their positions
  std::span<const Checkpoint> checkpoint_states() const { return checkpoints_; }
  uint64_t checkpoint_bytes() const;  // beyond what the text's own state holds

  std::unique_ptr<History> copy() const;

 private:
  History(const History& other);
  const Checkpoint* last_checkpoint(size_t position) const;  // at or before; null: none
  void take_checkpoints();
  void drop_checkpoints();

  Engine& engine_;
  HistoryOptions options_;
  std::vector<Token> tokens_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<Checkpoint> checkpoints_;  // by position
  size_t last_wish_ = 0;                 // that the sequence was asked to copy itself at
};

// Whether a model's state can be cut anywhere, so that it needs no checkpoints.
bool can_always_go_back(const ModelConfig& model);

}  // namespace moeflux
