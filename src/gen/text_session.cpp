#include "gen/text_session.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {

TextPrompt TextSession::chat_prompt(const ChatPrompt& rendered) const {
  if (sequence_ && !text_.empty() && rendered.text.starts_with(text_)) {
    TextPrompt prompt{tokens_, rendered.text};
    const std::vector<Token> rest = encode_chat(model_.tokenizer(), rendered, text_.size());
    prompt.tokens.insert(prompt.tokens.end(), rest.begin(), rest.end());
    return prompt;
  }
  return {encode_chat(model_.tokenizer(), rendered), rendered.text};
}

size_t TextSession::reusable(const TextPrompt& prompt) const {
  const size_t n = sequence_ ? sequence_->position() : 0;
  const bool goes_on =
      n < prompt.tokens.size() &&
      std::equal(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(n), prompt.tokens.begin());
  return goes_on ? n : 0;
}

void TextSession::reset() {
  sequence_.reset();
  tokens_.clear();
  text_.clear();
}

TextResult TextSession::generate(const TextPrompt& prompt, const TextRequest& request,
                                 const OnText& on_text) {
  TextResult result;
  result.n_reused = reusable(prompt);
  if (result.n_reused == 0) reset();  // a state cannot go back; the old one makes room for the new
  if (!sequence_) sequence_ = engine_.make_sequence();
  TextRun run(model_, prompt.continued ? std::span<const Token>(prompt.tokens) : std::span<const Token>(),
              request, on_text);
  const std::span<const Token> tokens = prompt.tokens;
  GenerationTimer timer(engine_, tokens.size() - result.n_reused);
  try {
    result.generated = moeflux::generate(
        engine_, *sequence_, tokens.subspan(result.n_reused), run.options(),
        [&](const Sample& sample) {
          timer.token();
          return run.token(sample);
        },
        tokens.first(result.n_reused));
    run.finish();
  } catch (...) {
    reset();
    throw;
  }
  tokens_ = prompt.tokens;
  tokens_.insert(tokens_.end(), result.generated.tokens.begin(), result.generated.tokens.end());
  text_ = prompt.text.empty() ? "" : prompt.text + run.all_text();
  result.text = run.text();
  result.stop_string = run.stop_string();
  result.times = timer.times();
  return result;
}

}  // namespace moeflux
