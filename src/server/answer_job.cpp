#include "server/answer_job.h"

#include <algorithm>
#include <set>

namespace moeflux {

using Event = AnswerEvent::Kind;

AnswerJob::AnswerJob(const AnswerContext& context, std::shared_ptr<HttpExchange> exchange,
                     std::vector<ChoiceSpec> specs, std::unique_ptr<AnswerWriter> writer)
    : context_(context), exchange_(std::move(exchange)), writer_(std::move(writer)) {
  std::set<size_t> prompts;
  for (ChoiceSpec& spec : specs) {
    if (prompts.insert(spec.prompt_index).second) usage_.prompt_tokens += spec.prompt.tokens.size();
    Choice choice{.spec = std::move(spec)};
    if (choice.spec.answer) {
      choice.spec.answer->stream_arguments = writer_->streams();
      choice.parser.emplace(*choice.spec.answer);
    }
    choices_.push_back(std::move(choice));
  }
}

void AnswerJob::start() {
  {
    const std::lock_guard lock(mutex_);  // events wait until the answer has begun
    try {
      for (size_t i = 0; i < choices_.size(); ++i) submit(i);
    } catch (const Error& e) {
      over_ = true;
      cancel_all();
      throw engine_error(e);
    }
    writer_->begin(usage_);
  }
  const std::weak_ptr<AnswerJob> self = weak_from_this();
  if (context_.timeout.count() > 0)
    exchange_->on_deadline(exchange_->begun() + context_.timeout, [self, timeout = context_.timeout] {
      const double seconds = std::chrono::duration<double>(timeout).count();
      if (const auto job = self.lock())
        job->stop({504, fmt::format("the answer took longer than {} s", seconds), "", "timeout"});
    });
  exchange_->on_leave([self] {
    const auto job = self.lock();
    if (!job) return;
    const std::lock_guard lock(job->mutex_);
    if (job->over_) return;
    job->over_ = true;
    job->conclude("client left");
    job->cancel_all();
  });
}

void AnswerJob::submit(size_t index) {
  Choice& choice = choices_[index];
  TextJob job{.prompt = std::move(choice.spec.prompt), .request = std::move(choice.spec.request)};
  const size_t total = job.prompt.tokens.size();
  const auto self = shared_from_this();
  job.request.generate.on_prompt = [self, total, index](size_t done) {
    self->guarded([&] {
      if (index == 0 && !self->over_) self->writer_->progress(done, total);
    });
    return !self->is_over();
  };
  job.on_text = [self, index](const TextPiece& piece) {
    Next next = Next::Cancel;
    self->guarded([&] { next = self->take(index, piece); });
    return next;
  };
  job.on_done = [self, index](const TextOutcome& outcome) {
    self->guarded([&] { self->finish(index, outcome); });
  };
  choice.id = context_.scheduler.submit(std::move(job));
  ++n_running_;
}

// A mistake of ours in one answer must not end the engine's thread.
void AnswerJob::guarded(const std::function<void()>& work) {
  const std::lock_guard lock(mutex_);
  try {
    work();
  } catch (const std::exception& e) {
    if (!over_) give_up({500, e.what(), "", "internal_error"});
  }
}

bool AnswerJob::is_over() {
  const std::lock_guard lock(mutex_);
  return over_;
}

Next AnswerJob::take(size_t index, const TextPiece& piece) {
  Choice& choice = choices_[index];
  if (over_) return Next::Cancel;
  if (choice.ended) return Next::Stop;
  if (piece.sample && piece.sample->logprobs) choice.held.push_back(logprob_of(*piece.sample));
  if (piece.sample && choice.in_reasoning) ++choice.n_reasoning;
  if (choice.parser)
    take_events(index, choice.parser->feed(piece.text));
  else if (!piece.text.empty())
    take_events(index, {{Event::Text, std::string(piece.text), ""}});
  if (over_ || exchange_->left()) return Next::Cancel;
  return choice.ended ? Next::Stop : Next::Continue;
}

void AnswerJob::take_events(size_t index, const std::vector<AnswerEvent>& events) {
  Choice& choice = choices_[index];
  for (const AnswerEvent& event : events) {
    if (choice.ended) return;  // after the one call that is wanted
    if (event.kind == Event::Reasoning && !choice.in_reasoning) ++choice.n_reasoning;
    choice.in_reasoning = event.kind == Event::Reasoning;
    // Log-probabilities are those of the text; thoughts and calls have none.
    TokenLogprobs logprobs = std::exchange(choice.held, {});
    if (event.kind != Event::Text) logprobs.clear();
    choice.has_calls |= event.kind == Event::CallBegin;
    writer_->add(index, event, logprobs);
    choice.ended = event.kind == Event::CallEnd && choice.spec.one_call;
  }
}

void AnswerJob::finish(size_t index, const TextOutcome& outcome) {
  Choice& choice = choices_[index];
  --n_running_;
  context_.metrics.count_text(outcome);
  if (over_) return;
  if (outcome.error) return give_up(engine_error(*outcome.error));
  if (outcome.result.generated.finish == FinishReason::Cancelled && !choice.ended)
    return give_up({503, "the answer was cancelled", "", "cancelled"});
  if (choice.parser) take_events(index, choice.parser->finish());
  if (!choice.held.empty() && !choice.in_reasoning && !choice.has_calls && !outcome.result.stop_string)
    take_events(index, {{Event::Text, "", ""}});
  const Generated& generated = outcome.result.generated;
  ChoiceEnd end{.finish = choice.ended ? FinishReason::Stop : generated.finish,
                .has_calls = choice.has_calls,
                .stop_string = outcome.result.stop_string};
  const size_t held = outcome.result.n_reused + outcome.result.times.n_prompt + generated.tokens.size();
  end.context_full = end.finish == FinishReason::Length && held > context_.context;
  choice.ended = true;
  const bool first = std::ranges::none_of(choices_, [&](const Choice& other) {
    return &other != &choice && other.ended && other.spec.prompt_index == choice.spec.prompt_index;
  });
  add_usage(choice, outcome, first);
  writer_->end_choice(index, end);
  if (n_running_ > 0) return;
  over_ = true;
  exchange_->note("finish", end.has_calls ? "tool_calls" : to_string(end.finish));
  writer_->end(usage_);
  conclude("done");
}

void AnswerJob::add_usage(const Choice& choice, const TextOutcome& outcome, bool first) {
  const TextResult& result = outcome.result;
  if (first) usage_.cached_tokens += result.n_reused;
  usage_.new_tokens += result.generated.tokens.size();
  usage_.reasoning_tokens += choice.n_reasoning;
  usage_.queue_s = std::max(usage_.queue_s, outcome.queue_s);
  usage_.first_token_s = std::max(usage_.first_token_s, outcome.first_token_s);
  usage_.total_s = std::max(usage_.total_s, outcome.total_s);
  if (&choice != &choices_.front()) return;
  usage_.prefill_s = result.times.prefill_s;
  usage_.decode_s = result.times.decode_s;
}

void AnswerJob::give_up(const ApiError& error) {
  over_ = true;
  exchange_->note("error", error.what());
  writer_->fail(error);
  conclude("failed");
  cancel_all();
}

void AnswerJob::stop(const ApiError& why) {
  const std::lock_guard lock(mutex_);
  if (!over_) give_up(why);
}

void AnswerJob::cancel_all() {
  for (const Choice& choice : choices_)
    if (choice.id != 0 && !choice.ended) context_.scheduler.cancel(choice.id);
}

void AnswerJob::conclude(const std::string& how) {
  exchange_->note("answer", how);
  exchange_->note("prompt_tokens", usage_.prompt_tokens);
  exchange_->note("cached_tokens", usage_.cached_tokens);
  exchange_->note("new_tokens", usage_.new_tokens);
  exchange_->note("queue_s", usage_.queue_s);
  exchange_->note("first_token_s", usage_.first_token_s);
}

TokenLogprob AnswerJob::logprob_of(const Sample& sample) const {
  const auto one = [&](Token token, double logprob) {
    return TokenLogprob::One{context_.model.tokenizer().token_bytes(token), logprob};
  };
  TokenLogprob out{.token = one(sample.token, sample.logprobs->chosen), .top = {}};
  for (const TokenChance& other : sample.logprobs->top) out.top.push_back(one(other.token, other.logprob));
  return out;
}

}  // namespace moeflux
