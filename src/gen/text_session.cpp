#include "gen/text_session.h"

#include <algorithm>

#include "base/error.h"
#include "gen/stop_strings.h"

namespace moeflux {
namespace {

constexpr std::string_view kThoughtEnd = "</think>";

// The grammar's part in a generation: which tokens may come, and how far the text is.
class GrammarWalk {
 public:
  GrammarWalk(const TextModel& model, const TextRequest& request)
      : masker_(request.grammar, model.mask_vocabulary()),
        state_(masker_.start()),
        mask_(masker_.vocabulary().n_words()),
        in_thought_(request.grammar_after_thought) {}

  std::span<const uint64_t> mask() {
    if (in_thought_) return {};
    if (!masker_.fill(state_, mask_))
      fail(Errc::InvalidArgument, "no token of this model fits what the grammar wants next");
    return mask_;
  }

  // False: the text is complete, and nothing can follow.
  bool advance(Token token, std::string_view all_text) {
    if (in_thought_) {
      in_thought_ = all_text.find(kThoughtEnd) == all_text.npos;
      return true;
    }
    check(masker_.advance(state_, token), "a token that the mask allows fits the grammar");
    return !state_.final();
  }

 private:
  TokenMasker masker_;
  GrammarState state_;
  std::vector<uint64_t> mask_;
  bool in_thought_;
};

}  // namespace

class TextSession::Run {
 public:
  Run(TextSession& session, const TextPrompt& prompt, const TextRequest& request, const OnText& on_text)
      : on_text_(on_text), stream_(session.model_.tokenizer()), stops_(request.stop) {
    if (request.grammar) grammar_.emplace(session.model_, request);
    if (prompt.continued)
      for (const Token token : prompt.tokens) stream_.push(token);
  }

  void set_mask(GenerateOptions& options) {
    if (grammar_) options.mask = [this] { return grammar_->mask(); };
  }

  Next token(const Sample& sample) {
    const std::string piece = stream_.push(sample.token);
    all_text += piece;
    const StopStrings::Released released = stops_.feed(piece);
    const Next next = release(released, &sample);
    const bool complete = grammar_ && !grammar_->advance(sample.token, all_text);
    return next == Next::Continue && (complete || released.stop) ? Next::Stop : next;
  }

  void finish() {
    const std::string piece = stream_.finish();
    all_text += piece;
    StopStrings::Released released = stops_.feed(piece);
    if (!released.stop) released.text += stops_.finish();
    if (!released.text.empty()) release(released, nullptr);
  }

  std::string all_text, text;
  std::optional<std::string> stop_string;

 private:
  Next release(const StopStrings::Released& released, const Sample* sample) {
    text += released.text;
    if (released.stop) stop_string = *released.stop;
    return on_text_ ? on_text_({released.text, sample}) : Next::Continue;
  }

  const OnText& on_text_;
  TextStream stream_;
  StopStrings stops_;
  std::optional<GrammarWalk> grammar_;
};

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
  Run run(*this, prompt, request, on_text);
  GenerateOptions options = request.generate;
  run.set_mask(options);
  const std::span<const Token> tokens = prompt.tokens;
  GenerationTimer timer(engine_, tokens.size() - result.n_reused);
  try {
    result.generated = moeflux::generate(
        engine_, *sequence_, tokens.subspan(result.n_reused), options,
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
  text_ = prompt.text.empty() ? "" : prompt.text + run.all_text;
  result.text = std::move(run.text);
  result.stop_string = std::move(run.stop_string);
  result.times = timer.times();
  return result;
}

}  // namespace moeflux
