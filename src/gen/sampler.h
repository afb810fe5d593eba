// Chooses the next token from a position's logits. docs/SAMPLING.md states the order of the filters and each
// formula; in short:
//
//   penalties, DRY, logit bias, bans and mask;  temperature;
//   top-n-sigma, top-k, typical-p, top-p, min-p, XTC  (or mirostat instead of these);  draw
//
// The choice depends on the logits, the options, the text that was read and the position only: not on
// threads, the processor, or what was drawn before (mirostat alone carries a state from token to token).
// Not thread-safe: one Sampler per text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gen/logit_blocks.h"
#include "gen/penalties.h"

namespace moeflux {

struct TokenBias {
  Token token;
  double bias;  // added to the logit
};

struct MirostatOptions {
  bool on = false;
  double target = 5;  // tau: the surprise aimed at, in bits
  double rate = 0.1;  // eta
};

struct SamplerOptions {
  double temperature = 1;      // 0: the likeliest token, of equal ones the lowest id
  uint64_t top_k = 0;          // 0: off
  double top_p = 1;            // 1: off
  double min_p = 0;            // 0: off
  double typical_p = 1;        // 1: off
  double top_n_sigma = 0;      // 0: off
  double xtc_probability = 0;  // 0: off
  double xtc_threshold = 0.1;
  PenaltyOptions penalties = {};
  MirostatOptions mirostat = {};
  std::vector<TokenBias> logit_bias = {};
  std::vector<Token> banned = {};
  uint64_t seed = 0;
  std::optional<uint64_t> logprobs = {};  // how many of the likeliest tokens to report beside the chosen one
};

// Throws Error{InvalidArgument} that names the option, its value and what is wanted.
void check_options(const SamplerOptions& options, size_t n_vocab);

// What may be chosen at one position, beyond the options.
struct Allowed {
  std::span<const uint64_t> mask = {};  // empty: every token; else bit id % 64 of word id / 64
  std::span<const Token> banned = {};
};

struct TokenChance {
  Token token;
  double logprob;  // natural; -infinity where the model rules the token out
};

// Of the model's own distribution: of its logits as they came, at temperature 1, before penalties and
// filters.
struct Logprobs {
  double chosen;
  std::vector<TokenChance> top;  // in rank order
};

struct Sample {
  Token token;
  std::optional<Logprobs> logprobs = {};
};

class Sampler {
 public:
  // All tables of operations give the same choices.
  Sampler(const SamplerOptions& options, size_t n_vocab, const Ops& ops = *runnable_ops().front());

  // The text: what came before, and each token that was generated after it. Throws Error{InvalidArgument}
  // for tokens that are not in the vocabulary.
  void read(std::span<const Token> prompt);
  void accept(Token token) { penalties_.accept(token); }

  // The token for `position`, counted from the start of the text. Throws Error{Corrupt} where a logit is NaN
  // or +infinity, Error{InvalidArgument} where nothing may be chosen. Does not accept() the token.
  Sample sample(std::span<const float> logits, size_t position, const Allowed& allowed = {});

  // Where few tokens decide: what the next choice needs of the logits; nothing: all of them. And the same
  // choice from that; nothing: it needs all logits after all.
  std::optional<ShortlistWish> wish(const Allowed& allowed = {}) const;
  std::optional<Sample> sample(const Shortlist& shortlist, size_t position, const Allowed& allowed = {});

  // The tokens among which sample() would draw, by id; a weight is a chance times the sum of all weights.
  struct Candidate {
    uint64_t key;     // rank_key
    uint64_t weight;  // > 0
  };
  std::span<const Candidate> candidates(std::span<const float> logits, size_t position,
                                        const Allowed& allowed = {});

 private:
  void prepare(std::span<const float> logits, size_t position, const Allowed& allowed);
  Token draw(size_t position);
  Token draw_mirostat(size_t position);
  Token draw_candidate(size_t position) const;
  bool draws_from_all() const;

  void shape(size_t position);
  void collect();
  void collect_top(size_t k, float floor);
  void collect_prefix();
  bool collect_listed(const Shortlist& shortlist, const Allowed& allowed);
  void weigh_keys();
  void gather(float floor);
  float floor_at(double exponent) const;
  void keep_typical();
  void keep_top_p();
  void keep_min_p();
  void exclude_top_choices(uint32_t random);
  void keep_unsurprising();
  void keep_best_only();

  Logprobs logprobs(std::span<const float> logits, size_t position, Token chosen);

  SamplerOptions options_;
  Penalties penalties_;
  const Ops& ops_;
  LogitBlocks logits_;
  std::optional<LogitBlocks> published_;  // as the model gave them, where logprobs are wanted
  double surprise_limit_;                 // mirostat's mu, in bits

  // Of one position.
  Weighing weighing_{};
  std::vector<uint64_t> keys_, weights_, sums_;
  std::vector<float> gathered_;
  std::vector<Candidate> candidates_;  // by id
  std::vector<Candidate> scratch_;
  uint64_t total_ = 0;  // weight of all tokens that the filters so far have left, gathered or not
};

}  // namespace moeflux
