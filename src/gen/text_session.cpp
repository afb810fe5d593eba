#include "gen/text_session.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {
namespace {

// A conversation goes back by a turn or two at most.
constexpr HistoryOptions kKept{.checkpoint_every = 512, .checkpoint_bytes = 256u << 20};

}  // namespace

TextPrompt TextSession::chat_prompt(const ChatPrompt& rendered) const {
  if (history_ && !text_.empty() && rendered.text.starts_with(text_)) {
    TextPrompt prompt{tokens_, rendered.text};
    const std::vector<Token> rest = encode_chat(model_.tokenizer(), rendered, text_.size());
    prompt.tokens.insert(prompt.tokens.end(), rest.begin(), rest.end());
    return prompt;
  }
  return {encode_chat(model_.tokenizer(), rendered), rendered.text};
}

size_t TextSession::reusable(const TextPrompt& prompt) const {
  if (!history_ || prompt.tokens.empty()) return 0;
  const std::span<const Token> kept = history_->tokens();
  const auto [end, _] =
      std::mismatch(kept.begin(), kept.end(), prompt.tokens.begin(), prompt.tokens.end() - 1);
  return history_->nearest(static_cast<size_t>(end - kept.begin()));
}

void TextSession::reset() {
  history_.reset();
  tokens_.clear();
  text_.clear();
}

TextResult TextSession::generate(const TextPrompt& prompt, const TextRequest& request,
                                 const OnText& on_text) {
  TextResult result;
  result.n_reused = reusable(prompt);
  if (result.n_reused == 0) reset();  // the old state makes room for the new one
  if (!history_) history_ = std::make_unique<History>(engine_, kKept);
  history_->go_back(result.n_reused);
  history_->expect(prompt.tokens.size() - result.n_reused);
  TextRun run(model_, prompt.continued ? std::span<const Token>(prompt.tokens) : std::span<const Token>(),
              request, on_text);
  const std::span<const Token> tokens = prompt.tokens;
  GenerationTimer timer(engine_, tokens.size() - result.n_reused);
  try {
    result.generated = moeflux::generate(
        engine_, history_->sequence(), tokens.subspan(result.n_reused), run.options(),
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
  const size_t n_new = history_->sequence().position() - result.n_reused;
  history_->accept(std::span(tokens_).subspan(result.n_reused, n_new));
  text_ = prompt.text.empty() ? "" : prompt.text + run.all_text();
  result.text = run.text();
  result.stop_string = run.stop_string();
  result.times = timer.times();
  return result;
}

}  // namespace moeflux
