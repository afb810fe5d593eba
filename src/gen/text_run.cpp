#include "gen/text_run.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr std::string_view kThoughtBegin = "<think>", kThoughtEnd = "</think>";

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

// Ends a thought that has become too long: one token after the other, the end of a thought alone may come.
class TextRun::ThoughtLimit {
 public:
  ThoughtLimit(const TextModel& model, const TextRequest& request)
      : most_(*request.most_thought_tokens),
        ending_(model.tokenizer().encode(kThoughtEnd, Markers::Recognised)),
        mask_((model.n_vocab() + 63) / 64),
        in_thought_(request.grammar_after_thought) {
    if (std::ranges::any_of(ending_, [&](Token token) { return token >= model.n_vocab(); }))
      fail(Errc::Unsupported,
           "the model has no token for the end of a thought: its length cannot be limited");
  }

  std::span<const uint64_t> mask() {  // empty: this does not care
    if (!in_thought_ || (n_thought_ < most_ && n_ending_ == 0)) return {};
    std::ranges::fill(mask_, 0);
    mask_[ending_[n_ending_] / 64] = uint64_t{1} << (ending_[n_ending_] % 64);
    ++n_ending_;
    return mask_;
  }

  void advance(std::string_view all_text) {
    const size_t begin = all_text.find_first_not_of(" \n");
    if (!in_thought_ && n_thought_ == 0)
      in_thought_ = begin != all_text.npos && all_text.substr(begin).starts_with(kThoughtBegin);
    if (!in_thought_) return;
    ++n_thought_;
    const size_t recent = all_text.size() - std::min(all_text.size(), kMostTokenBytes + kThoughtEnd.size());
    if (n_ending_ == ending_.size() || all_text.find(kThoughtEnd, recent) != all_text.npos)
      in_thought_ = false;
  }

 private:
  static constexpr size_t kMostTokenBytes =
      1024;  // how far back an end of a thought may be that has just come
  const size_t most_;
  const std::vector<Token> ending_;
  std::vector<uint64_t> mask_;
  bool in_thought_;
  size_t n_thought_ = 0, n_ending_ = 0;
};

TextRun::TextRun(const TextModel& model, std::span<const Token> continued, const TextRequest& request,
                 OnText on_text)
    : request_(request), on_text_(std::move(on_text)), stream_(model.tokenizer()), stops_(request.stop) {
  if (request.grammar) grammar_ = std::make_unique<GrammarWalk>(model, request);
  if (request.most_thought_tokens) limit_ = std::make_unique<ThoughtLimit>(model, request);
  for (const Token token : continued) stream_.push(token);
}

TextRun::~TextRun() = default;

GenerateOptions TextRun::options() {
  GenerateOptions options = request_.generate;
  if (grammar_ || limit_)
    options.mask = [this]() -> std::span<const uint64_t> {
      const std::span<const uint64_t> ending = limit_ ? limit_->mask() : std::span<const uint64_t>();
      return ending.empty() && grammar_ ? grammar_->mask() : ending;
    };
  return options;
}

Next TextRun::token(const Sample& sample) {
  const std::string piece = stream_.push(sample.token);
  all_text_ += piece;
  if (limit_) limit_->advance(all_text_);
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
