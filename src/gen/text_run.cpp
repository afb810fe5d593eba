#include "gen/text_run.h"

#include "base/error.h"

namespace moeflux {
namespace {

constexpr std::string_view kThoughtEnd = "</think>";

}  // namespace

// The grammar's part in a generation: which tokens may come, and how far the text is.
class TextRun::GrammarWalk {
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

TextRun::TextRun(const TextModel& model, std::span<const Token> continued, const TextRequest& request,
                 OnText on_text)
    : request_(request), on_text_(std::move(on_text)), stream_(model.tokenizer()), stops_(request.stop) {
  if (request.grammar) grammar_ = std::make_unique<GrammarWalk>(model, request);
  for (const Token token : continued) stream_.push(token);
}

TextRun::~TextRun() = default;

GenerateOptions TextRun::options() {
  GenerateOptions options = request_.generate;
  if (grammar_) options.mask = [this] { return grammar_->mask(); };
  return options;
}

Next TextRun::token(const Sample& sample) {
  const std::string piece = stream_.push(sample.token);
  all_text_ += piece;
  const StopStrings::Released released = stops_.feed(piece);
  const Next next = release(released, &sample);
  const bool complete = grammar_ && !grammar_->advance(sample.token, all_text_);
  return next == Next::Continue && (complete || released.stop) ? Next::Stop : next;
}

void TextRun::finish() {
  const std::string piece = stream_.finish();
  all_text_ += piece;
  StopStrings::Released released = stops_.feed(piece);
  if (!released.stop) released.text += stops_.finish();
  if (!released.text.empty()) release(released, nullptr);
}

Next TextRun::release(const StopStrings::Released& released, const Sample* sample) {
  text_ += released.text;
  if (released.stop) stop_string_ = *released.stop;
  return on_text_ ? on_text_({released.text, sample}) : Next::Continue;
}

}  // namespace moeflux
