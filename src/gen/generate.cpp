#include "gen/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "gen/mtp_draft.h"

namespace moeflux {
namespace {

// Null: guesses come from the text, or there are none.
std::unique_ptr<MtpDraft> make_mtp_draft(Engine& engine, const GenerateOptions& options) {
  if (options.draft == 0 || options.draft_from == DraftSource::Ngram) return nullptr;
  if (std::unique_ptr<Sequence> sequence = engine.make_mtp_sequence())
    return std::make_unique<MtpDraft>(engine, std::move(sequence));
  if (options.draft_from == DraftSource::Auto) return nullptr;
  if (engine.has_mtp())
    fail(Errc::Unsupported, "the backend {} does not compute the multi-token-prediction layer",
         engine.options().backend);
  fail(Errc::Unsupported,
       "{}: there is no multi-token-prediction layer to guess tokens with; `convert --mtp` keeps that of a "
       "checkpoint",
       engine.package().folder().string());
}

// The logits of the prompt's last token, or nothing where a callback cancelled.
std::optional<std::vector<float>> evaluate_prompt(Engine& engine, Sequence& sequence,
                                                  std::span<const Token> prompt,
                                                  const GenerateOptions& options, MtpDraft* mtp) {
  const auto& on_prompt = options.on_prompt;
  if ((!on_prompt && !mtp) ||
      prompt.size() > sequence.capacity() - sequence.position())  // eval says what is wrong
    return engine.eval(sequence, prompt, 1, options.tap);
  std::vector<float> hidden;
  std::vector<float> logits;
  for (size_t at = 0, n = 0; at < prompt.size(); at += n) {
    n = std::min<size_t>(engine.options().chunk, prompt.size() - at);
    const bool last = at + n == prompt.size();
    logits = engine.eval(sequence, prompt.subspan(at, n), last ? 1 : 0, options.tap, mtp ? &hidden : nullptr);
    if (mtp) mtp->read(prompt.subspan(at, n), hidden);
    if (on_prompt && !on_prompt(at + n)) return {};
  }
  return logits;
}

// Generates after a prompt, a step for every token or for several.
class DecodeLoop {
 public:
  DecodeLoop(Engine& engine, Sequence& sequence, const GenerateOptions& options, std::span<const Token> text,
             Generation& generation, const OnToken& on_token, MtpDraft* mtp)
      : engine_(engine),
        sequence_(sequence),
        options_(options),
        generation_(generation),
        on_token_(on_token),
        mtp_(mtp) {
    if (options.draft > 0 && !mtp) ngram_.emplace(text);
    if (mtp) stats_.source = DraftSource::Mtp;
  }

  void run(std::vector<float> logits) {
    size_t new_tokens = 0;
    bool go_on = choose(logits, {}, new_tokens);
    while (go_on && sequence_.position() < sequence_.capacity()) {
      if (takes_shortlist()) {
        go_on = step_listed(logits);
        continue;
      }
      const size_t before = sequence_.position(), most = may_guess();
      if (mtp_ && most > 0) mtp_->catch_up();  // a pause's tokens are no part of what a guess costs
      const auto start = std::chrono::steady_clock::now();
      std::vector<Token> tokens{generation_.result().tokens.back()}, guess;
      if (most > 0) guess = mtp_ ? mtp_->guess(tokens.back(), most) : ngram_->guess(most);
      tokens.insert(tokens.end(), guess.begin(), guess.end());
      logits = engine_.eval(sequence_, tokens, tokens.size(), options_.tap, mtp_ ? &hidden_ : nullptr,
                            std::move(logits));
      new_tokens = 0;
      go_on = choose(logits, guess, new_tokens);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      if (options_.draft > 0) governor_.step_done(guess.size(), new_tokens, time.count());
      if (!mtp_ || !go_on) continue;
      const size_t n = sequence_.position() - before;  // that have stayed
      mtp_->read(std::span(tokens).first(n), std::span(hidden_).first(n * engine_.config().d_model));
    }
    stats_.pauses = governor_.pauses();
    generation_.guessed(stats_);
  }

 private:
  bool takes_shortlist() const {
    return engine_.keeps_logits() && !options_.tap && options_.draft == 0 && generation_.wish().has_value();
  }

  // A step whose logits stay where they are, unless they are all needed; true: go on. memory: for them.
  bool step_listed(std::vector<float>& memory) {
    const Token token = generation_.result().tokens.back();
    const Slice slice{&sequence_, 0, 1};
    const uint32_t row = 0;
    const ShortlistWish wish = *generation_.wish();
    engine_.step({.tokens = {&token, 1},
                  .slices = {&slice, 1},
                  .logit_rows = {&row, 1},
                  .wishes = {&wish, 1},
                  .shortlists = {shortlist_.get(), 1}},
                 {}, options_.tap);
    const size_t position = sequence_.position();
    if (const std::optional<bool> go_on = generation_.advance(*shortlist_, position, on_token_))
      return *go_on;
    memory.resize(engine_.config().n_vocab);
    engine_.read_logits(0, memory);
    return generation_.advance(memory, position, on_token_);
  }

  size_t may_guess() {  // at most so many tokens before the next step
    if (options_.draft == 0) return 0;
    const size_t position = sequence_.position(), made = generation_.result().tokens.size(),
                 removable = sequence_.removable();
    can_go_back_ |= removable >= 2;
    stats_.barred = !can_go_back_;
    if (removable < 2) return 0;  // the next token is not a guess, but comes first
    const size_t most = std::min({options_.draft, sequence_.capacity() - position - 1,
                                  options_.max_tokens - made, removable - 1, engine_.options().chunk - 1});
    return most > 0 && governor_.may_guess() ? most : 0;
  }

  // Row i holds the logits after the guess's first i tokens: it counts if these were all chosen. What was
  // evaluated in vain is forgotten.
  bool choose(std::span<const float> logits, std::span<const Token> guess, size_t& new_tokens) {
    const size_t n_vocab = engine_.config().n_vocab, first = sequence_.position() - guess.size();
    bool go_on = true;
    size_t right = 0;
    for (;; ++right) {
      go_on = generation_.advance(logits.subspan(right * n_vocab, n_vocab), first + right, on_token_);
      const std::vector<Token>& made = generation_.result().tokens;
      const bool chosen = go_on || generation_.result().stop_token == std::nullopt;
      new_tokens += chosen;
      if (ngram_ && chosen) ngram_->add(made.back());
      if (!go_on || right == guess.size() || made.back() != guess[right]) break;
    }
    if (!guess.empty()) ++stats_.steps;
    stats_.guessed += guess.size();
    stats_.right += right;
    check(sequence_.cut(first + right), "a sequence from which a guess can be taken back");
    return go_on;
  }

  Engine& engine_;
  Sequence& sequence_;
  const GenerateOptions& options_;
  Generation& generation_;
  const OnToken& on_token_;
  MtpDraft* const mtp_;  // where guesses come from, or
  std::optional<NgramDraft> ngram_;
  std::vector<float> hidden_;  // of the step under way, for mtp_
  std::unique_ptr<Shortlist> shortlist_ = std::make_unique<Shortlist>();
  DraftGovernor governor_;
  bool can_go_back_ = false;  // the state could have, at some step
  DraftStats stats_;
};

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::Stop:
      return "stop";
    case FinishReason::Length:
      return "length";
    case FinishReason::Cancelled:
      return "cancelled";
  }
  return "";
}

Generation::Generation(const GenerateOptions& options, std::span<const Token> text, size_t n_vocab,
                       const Ops& ops)
    : options_(options), sampler_(options.sampler, n_vocab, ops) {
  sampler_.read(text);
}

bool Generation::is_stop(Token token) const {
  return std::ranges::find(options_.stop_tokens, token) != options_.stop_tokens.end();
}

bool Generation::advance(std::span<const float> logits, size_t position, const OnToken& on_token) {
  Allowed allowed = this->allowed();
  if (options_.mask) allowed.mask = options_.mask();
  return take(sampler_.sample(logits, position, allowed), on_token);
}

std::optional<ShortlistWish> Generation::wish() const {
  return options_.mask ? std::nullopt : sampler_.wish(allowed());
}

std::optional<bool> Generation::advance(const Shortlist& shortlist, size_t position,
                                        const OnToken& on_token) {
  const std::optional<Sample> sample = sampler_.sample(shortlist, position, allowed());
  if (!sample) return {};
  return take(*sample, on_token);
}

Allowed Generation::allowed() const {
  const bool may_stop = !options_.ignore_stop_tokens && result_.tokens.size() >= options_.min_tokens;
  return {.banned = may_stop ? std::span<const Token>() : std::span<const Token>(options_.stop_tokens)};
}

bool Generation::take(const Sample& sample, const OnToken& on_token) {
  if (is_stop(sample.token)) {
    result_.stop_token = sample.token;
    return go_on(Next::Stop);
  }
  sampler_.accept(sample.token);
  result_.tokens.push_back(sample.token);
  return go_on(on_token ? on_token(sample) : Next::Continue);
}

bool Generation::go_on(Next next) {
  if (next == Next::Continue) {
    end(FinishReason::Length);  // unless something else ends it first
    return result_.tokens.size() < options_.max_tokens;
  }
  end(next == Next::Stop ? FinishReason::Stop : FinishReason::Cancelled);
  return false;
}

Generated generate(Engine& engine, Sequence& sequence, std::span<const Token> prompt,
                   const GenerateOptions& options, const OnToken& on_token, std::span<const Token> earlier) {
  if (prompt.empty()) fail(Errc::InvalidArgument, "the prompt is empty: there is nothing to continue");
  std::vector<Token> text(earlier.begin(), earlier.end());
  text.insert(text.end(), prompt.begin(), prompt.end());
  Generation generation(options, text, engine.config().n_vocab, choose_ops(engine.options().isa));
  if (options.max_tokens == 0) return generation.result();
  const std::unique_ptr<MtpDraft> mtp = make_mtp_draft(engine, options);
  auto logits = evaluate_prompt(engine, sequence, prompt, options, mtp.get());
  if (logits)
    DecodeLoop(engine, sequence, options, text, generation, on_token, mtp.get()).run(std::move(*logits));
  else
    generation.end(FinishReason::Cancelled);
  return generation.result();
}

}  // namespace moeflux
