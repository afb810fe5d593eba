// From a prompt to new tokens: evaluate, choose, decide whether to go on. Token ids only; a layer above turns
// them into text, looks for stop strings (stop_strings.h) and says so through the callback.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "gen/draft.h"
#include "gen/engine.h"
#include "gen/sampler.h"

namespace moeflux {

struct GenerateOptions {
  SamplerOptions sampler = {};
  size_t max_tokens = std::numeric_limits<size_t>::max();  // at most as many as the context holds
  size_t min_tokens = 0;                                   // no stop token is chosen before
  std::vector<Token> stop_tokens = {};
  bool ignore_stop_tokens = false;  // none is ever chosen
  // Asked before every choice for the tokens that may be chosen (Allowed::mask); none: all may.
  std::function<std::span<const uint64_t>()> mask = {};
  // Told how many tokens of the prompt have been evaluated, chunk by chunk; false cancels.
  std::function<bool(size_t)> on_prompt = {};
  size_t draft = 0;  // at most so many tokens are guessed and evaluated together with the next one (draft.h)
  DraftSource draft_from = DraftSource::Auto;
  Tap tap = {};  // of every evaluation
};

enum class FinishReason {
  Stop,      // a stop token, or the callback said so
  Length,    // max_tokens, or the context is full
  Cancelled  // by a callback
};
const char* to_string(FinishReason reason);

enum class Next { Continue, Stop, Cancel };
using OnToken = std::function<Next(const Sample&)>;

struct Generated {
  std::vector<Token> tokens;  // without the stop token
  FinishReason finish = FinishReason::Length;
  std::optional<Token> stop_token = {};
  DraftStats drafts = {};
};

// The choices of one text, without the evaluation: for a caller that evaluates several texts at once.
class Generation {
 public:
  // `text`: all tokens so far, for the penalties.
  Generation(const GenerateOptions& options, std::span<const Token> text, size_t n_vocab,
             const Ops& ops = *runnable_ops().front());

  // Chooses the token for `position` and hands it to on_token. True: evaluate it and come back with its
  // logits; false: the generation has ended.
  bool advance(std::span<const float> logits, size_t position, const OnToken& on_token);
  // The same from what wish() asks for, where it asks for something. Nothing: it needs the logits after all,
  // and nothing has happened.
  std::optional<ShortlistWish> wish() const;
  std::optional<bool> advance(const Shortlist& shortlist, size_t position, const OnToken& on_token);
  void end(FinishReason reason) { result_.finish = reason; }
  void guessed(const DraftStats& stats) { result_.drafts = stats; }

  const Generated& result() const { return result_; }

 private:
  bool is_stop(Token token) const;
  Allowed allowed() const;  // but for the mask
  bool take(const Sample& sample, const OnToken& on_token);
  bool go_on(Next next);

  GenerateOptions options_;
  Sampler sampler_;
  Generated result_;
};

// Continues a sequence with `prompt` (at least one token) and then new tokens. on_token sees every new token
// except a stop token, before the next is computed. `earlier`: the tokens that the sequence already holds,
// for the penalties.
//
// The last new token is evaluated only if another followed or a stop token was chosen after it:
// sequence.position() says how far the sequence has come.
//
// Throws Error{Unsupported} where guesses are to come from a layer that the package lacks or the backend
// cannot compute.
Generated generate(Engine& engine, Sequence& sequence, std::span<const Token> prompt,
                   const GenerateOptions& options, const OnToken& on_token = {},
                   std::span<const Token> earlier = {});

}  // namespace moeflux
