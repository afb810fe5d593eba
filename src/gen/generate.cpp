#include "gen/generate.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {
namespace {

// The logits of the prompt's last token, or nothing where a callback cancelled.
std::optional<std::vector<float>> evaluate_prompt(Engine& engine, Sequence& sequence,
                                                  std::span<const Token> prompt,
                                                  const GenerateOptions& options) {
  const auto& on_prompt = options.on_prompt;
  if (!on_prompt || prompt.size() > sequence.capacity() - sequence.position())  // eval says what is wrong
    return engine.eval(sequence, prompt, 1, options.tap);
  std::vector<float> logits;
  for (size_t at = 0, n = 0; at < prompt.size(); at += n) {
    n = std::min<size_t>(engine.options().chunk, prompt.size() - at);
    const bool last = at + n == prompt.size();
    logits = engine.eval(sequence, prompt.subspan(at, n), last ? 1 : 0, options.tap);
    if (!on_prompt(at + n)) return {};
  }
  return logits;
}

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
  Allowed allowed;
  if (options_.mask) allowed.mask = options_.mask();
  const bool may_stop = !options_.ignore_stop_tokens && result_.tokens.size() >= options_.min_tokens;
  if (!may_stop) allowed.banned = options_.stop_tokens;
  const Sample sample = sampler_.sample(logits, position, allowed);
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
  auto logits = evaluate_prompt(engine, sequence, prompt, options);
  if (!logits) generation.end(FinishReason::Cancelled);
  while (logits && generation.advance(*logits, sequence.position(), on_token) &&
         sequence.position() < sequence.capacity())
    logits = engine.eval(sequence, {&generation.result().tokens.back(), 1}, 1, options.tap);
  return generation.result();
}

}  // namespace moeflux
