// Generation: a prompt into a sequence, and new tokens after it.
#include <algorithm>

#include "api/context_state.h"
#include "api/handles.h"
#include "api/sampling.h"
#include "gen/generation_times.h"
#include "text/answer_parser.h"
#include "text/json_schema.h"

namespace {

using namespace moeflux;
using namespace moeflux::api;

Next next_of(int32_t answer) {
  return answer == MOEFLUX_CONTINUE ? Next::Continue : answer == MOEFLUX_STOP ? Next::Stop : Next::Cancel;
}

std::shared_ptr<const Grammar> read_grammar(const moeflux_generate_options& o) {
  if (o.grammar && o.json_schema) refuse("a grammar and a json_schema are given: a text can be held to one");
  if (o.grammar) return std::make_shared<Grammar>(Grammar::parse(text_argument(o.grammar, "grammar")));
  if (o.json_schema)
    return std::make_shared<Grammar>(compile_json_schema(text_argument(o.json_schema, "json_schema")));
  return nullptr;
}

DraftSource read_draft_source(uint32_t from) {
  switch (from) {
    case MOEFLUX_DRAFT_AUTO:
      return DraftSource::Auto;
    case MOEFLUX_DRAFT_NGRAM:
      return DraftSource::Ngram;
    case MOEFLUX_DRAFT_MTP:
      return DraftSource::Mtp;
    default:
      refuse("draft_from is {}, which names no source of guesses", from);
  }
}

TextRequest read_request(ModelState& model, const moeflux_generate_options& o) {
  TextSettings settings = read_sampling(model, o.sampling);
  if (o.max_tokens) settings.max_tokens = o.max_tokens;
  settings.min_tokens = o.min_tokens;
  settings.ignore_eos = o.ignore_stop_tokens != 0;
  settings.stop = read_texts(o.stop, o.n_stop, "stop");
  const bool wants_text = !settings.stop.empty() || o.grammar || o.json_schema;
  if (wants_text) model.text();  // says where there is none
  TextRequest request = request_of(model, settings);
  request.grammar = read_grammar(o);
  if (o.want_logprobs) request.generate.sampler.logprobs = o.n_top;
  request.generate.draft = o.draft;
  request.generate.draft_from = read_draft_source(o.draft_from);
  check_options(request.generate.sampler, model.engine.config().n_vocab);
  return request;
}

// One generation of a sequence. The engine's turn is held while it evaluates and given back for the caller's
// functions.
class GenerateCall {
 public:
  GenerateCall(ContextState& context, TokenSequence& sequence, const moeflux_generate_options& options,
               std::vector<Token> prompt)
      : context_(context),
        model_(context.model()),
        sequence_(sequence),
        options_(options),
        watch_(context, options.cancel),
        request_(read_request(model_, options)),
        prompt_(std::move(prompt)) {}

  moeflux_result run() {
    make_text_run();
    if (watch_.cancelled()) return result({.tokens = {}, .finish = FinishReason::Cancelled}, {}, 0);
    std::unique_lock turn(model_.turns);
    try {
      return run_in_turn(turn);
    } catch (...) {
      if (!turn.owns_lock()) turn.lock();
      sequence_.release_unused();
      throw;
    }
  }

 private:
  moeflux_result run_in_turn(std::unique_lock<TurnLock>& turn) {
    const size_t n_reused = options_.whole_text ? reuse() : 0;
    std::vector<Token> tokens(sequence_.pending().begin(), sequence_.pending().end());
    tokens.insert(tokens.end(), prompt_.begin() + static_cast<ptrdiff_t>(n_reused), prompt_.end());
    History& history = context_.history(sequence_);
    if (tokens.size() > history.capacity() - history.position())
      refuse("{} tokens after {} do not fit in the context of {}", tokens.size(), history.position(),
             history.capacity());
    history.expect(tokens.size());
    GenerationTimer timer(model_.engine, tokens.size());
    const Generated generated = generate(history, tokens, timer, turn);
    sequence_.release_unused();
    turn.unlock();
    if (text_) text_->finish();
    return result(generated, timer.times(), n_reused);
  }

  // Keeps what the sequence holds of the prompt, but for the prompt's last token, whose logits are wanted.
  size_t reuse() {
    const std::span<const Token> held = sequence_.evaluated();
    const size_t most = std::min(held.size(), prompt_.size() - 1);
    const auto differ =
        std::mismatch(held.begin(), held.begin() + static_cast<ptrdiff_t>(most), prompt_.begin());
    return sequence_.go_back(static_cast<size_t>(differ.first - held.begin()));
  }

  void make_text_run() {
    if (!model_.has_text()) return;
    const std::lock_guard lock(model_.text_mutex);
    const TextModel& text = model_.text();
    if (request_.grammar && !options_.continued)
      request_.grammar_after_thought = ends_in_thought(text.tokenizer().decode(prompt_));
    text_.emplace(text, options_.continued ? std::span<const Token>(prompt_) : std::span<const Token>(),
                  request_, [this](const TextPiece& piece) { return show(piece); });
  }

  Next show(const TextPiece& piece) {
    if (!options_.on_text) return Next::Continue;
    const std::string text(piece.text);
    std::vector<moeflux_chance> top;
    moeflux_piece out{};
    out.size = sizeof out;
    out.text = text.c_str();
    out.n_bytes = text.size();
    if (piece.sample) {
      out.has_token = 1;
      out.token = piece.sample->token;
      if (const auto& logprobs = piece.sample->logprobs) {
        out.logprob = logprobs->chosen;
        for (const TokenChance& chance : logprobs->top) top.push_back({chance.logprob, chance.token, 0});
        out.top = top.data();
        out.n_top = top.size();
      }
    }
    return next_of(options_.on_text(options_.user, &out));
  }

  Generated generate(History& history, const std::vector<Token>& tokens, GenerationTimer& timer,
                     std::unique_lock<TurnLock>& turn) {
    const auto without_turn = [&](auto&& work) {
      turn.unlock();
      const auto answer = work();
      turn.lock();
      return answer;
    };
    const std::vector<Token> earlier(history.tokens().begin(), history.tokens().end());
    to_evaluate_ = tokens;
    size_t n_sure = tokens.size();  // of these, before the newest choice: what follows may be a wrong guess
    GenerateOptions options = text_ ? text_->options() : request_.generate;
    options.on_prompt = [&](size_t done) {
      ++model_.n_steps;
      settle(history);
      return without_turn([&] { return show_prompt(done, tokens.size()); }) && !watch_.cancelled();
    };
    const auto on_token = [&](const Sample& sample) {
      settle(history);
      timer.token();
      n_sure = to_evaluate_.size();
      to_evaluate_.push_back(sample.token);
      const Next next = without_turn([&] { return text_ ? text_->token(sample) : show({{}, &sample}); });
      return watch_.cancelled() ? Next::Cancel : next;
    };
    const auto count_steps = [&](size_t right) {  // after the prompt: each has one token that is no guess
      if (n_evaluated_ > tokens.size()) model_.n_steps += n_evaluated_ - tokens.size() - right;
    };
    Generated generated;
    try {
      generated = moeflux::generate(model_.engine, history.sequence(), tokens, options, on_token, earlier);
    } catch (...) {
      if (!turn.owns_lock()) turn.lock();  // a callback threw
      const size_t sure = history.position() + n_sure - n_evaluated_;
      if (history.sequence().position() > sure)
        check(history.sequence().cut(sure), "a sequence from which a guess can be taken back");
      settle(history);
      count_steps(0);
      throw;
    }
    settle(history);
    count_steps(generated.drafts.right);
    if (n_evaluated_ >= tokens.size() && n_evaluated_ < to_evaluate_.size())
      sequence_.leave_pending(to_evaluate_[n_evaluated_]);
    return generated;
  }

  bool show_prompt(size_t done, size_t total) const {
    return !options_.on_prompt || options_.on_prompt(options_.user, done, total) == MOEFLUX_CONTINUE;
  }

  // Brings the history to what the engine has evaluated by now; not while it holds guesses that have not been
  // chosen.
  void settle(History& history) {
    const size_t n = history.sequence().position() - history.position();
    if (n == 0 || n > to_evaluate_.size() - n_evaluated_) return;
    sequence_.accept(std::span(to_evaluate_).subspan(n_evaluated_, n));
    n_evaluated_ += n;
    model_.n_tokens += n;
  }

  moeflux_result result(const Generated& generated, const GenerationTimes& times, size_t n_reused) const {
    moeflux_result out{};
    std::unique_ptr<char, void (*)(void*)> text(give_text(text_ ? text_->text() : ""), moeflux_free);
    give_list(generated.tokens, &out.tokens, &out.n_tokens);
    out.n_bytes = text_ ? text_->text().size() : 0;
    out.finish = generated.finish == FinishReason::Stop     ? MOEFLUX_FINISH_STOP
                 : generated.finish == FinishReason::Length ? MOEFLUX_FINISH_LENGTH
                                                            : MOEFLUX_FINISH_CANCELLED;
    out.has_stop_token = generated.stop_token.has_value();
    out.stop_token = generated.stop_token.value_or(0);
    out.has_stop_text = text_ && text_->stop_string();
    out.n_prompt = prompt_.size();
    out.n_reused = n_reused;
    out.prefill_seconds = times.prefill_s;
    out.decode_seconds = times.decode_s;
    out.bytes_read = times.prefill.bytes_read + times.decode.bytes_read;
    out.n_guessed = generated.drafts.guessed;
    out.n_right = generated.drafts.right;
    out.text = text.release();
    return out;
  }

  ContextState& context_;
  ModelState& model_;
  TokenSequence& sequence_;
  const moeflux_generate_options& options_;
  const CancelWatch watch_;
  TextRequest request_;
  const std::vector<Token> prompt_;
  std::optional<TextRun> text_;
  std::vector<Token> to_evaluate_;  // the prompt and what was chosen
  size_t n_evaluated_ = 0;          // of these
};

std::vector<Token> read_prompt(ModelState& model, const moeflux_token* prompt, size_t n_prompt) {
  if (n_prompt == 0) refuse("the prompt is empty: there is nothing to continue");
  const size_t ctx = model.engine.plan().ctx;
  if (n_prompt > ctx) refuse("a prompt of {} tokens does not fit in the context of {}", n_prompt, ctx);
  const std::span<const Token> given = token_argument(prompt, n_prompt, "prompt");
  const uint64_t n_vocab = model.engine.config().n_vocab;
  for (const Token token : given)
    if (token >= n_vocab) refuse("token {} is not in the vocabulary of {}", token, n_vocab);
  return {given.begin(), given.end()};
}

}  // namespace

moeflux_status moeflux_generate(moeflux_context* context, uint32_t sequence, const moeflux_token* prompt,
                                size_t n_prompt, const moeflux_generate_options* options,
                                moeflux_result* result) {
  return call([&] {
    const auto state = find_handle(context);
    const auto use = state->use.begin("context");
    if (result) check_struct(result, kFirstSize<moeflux_result>, sizeof *result, "moeflux_result");
    const auto given = read_struct_or_default(options, "moeflux_generate_options");
    TokenSequence& into = state->sequence(sequence);
    GenerateCall generation(*state, into, given, read_prompt(state->model(), prompt, n_prompt));
    moeflux_result value = generation.run();
    if (result)
      write_struct(result, value, "moeflux_result");
    else
      moeflux_result_free(&value);
  });
}

void moeflux_result_free(moeflux_result* result) {
  if (!result) return;
  moeflux_free(result->text);
  moeflux_free(result->tokens);
  result->text = nullptr;
  result->tokens = nullptr;
}
