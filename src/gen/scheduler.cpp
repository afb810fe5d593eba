#include "gen/scheduler.h"

#include <algorithm>

#include "base/clock.h"

namespace moeflux {
struct Scheduler::Text {
  Text(JobId i, TextJob j) : id(i), job(std::move(j)) {}

  JobId id;
  TextJob job;
  Clock::time_point asked = Clock::now(), begun, first_token;
  std::unique_ptr<History> history = {};  // from its prompt's first step on
  std::optional<TextRun> run = {};
  std::optional<Generation> generation = {};
  std::optional<GenerationTimer> timer = {};
  OnToken on_token = {};
  size_t n_reused = 0;
  bool cancelled = false, ended = false;

  std::span<const Token> tokens() const { return job.prompt.tokens; }
  size_t prompt_left() const {
    const size_t n = history ? history->position() : 0;
    return n < tokens().size() ? tokens().size() - n : 0;
  }
};

struct Scheduler::StepPlan {
  std::vector<Token> tokens;
  std::vector<Slice> slices;
  std::vector<Text*> texts;             // by slice
  size_t n_decoding = 0, n_prompt = 0;  // slices of texts that are being generated, which come first; tokens
                                        // of prompts
  std::vector<uint32_t> logit_rows;     // tokens, ascending
  std::vector<Text*> chooses;           // by row
};

Scheduler::Scheduler(Engine& engine, const TextModel& model, const SchedulerOptions& options)
    : engine_(engine), model_(model), options_(options) {
  if (options.parallel == 0 || options.parallel > engine.options().chunk)
    fail(Errc::InvalidArgument,
         "{} texts at once: there must be at least one and at most {}, a step's tokens", options.parallel,
         engine.options().chunk);
  model_.mask_vocabulary();
  const PrefixCacheOptions& kept = options.prefixes;
  if (kept.ram_bytes > 0 || !kept.folder.empty()) prefixes_.emplace(kept, engine);
  thread_ = std::jthread([this] { serve(); });
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    accepting_ = false;
    stop_ = true;
  }
  changed_.notify_all();
}

JobId Scheduler::submit(TextJob job) {
  const size_t n = job.prompt.tokens.size(), ctx = engine_.plan().ctx;
  if (n == 0) fail(Errc::InvalidArgument, "the prompt is empty: there is nothing to continue");
  if (n > ctx)
    fail(Errc::InvalidArgument, "a prompt of {} tokens does not fit in the context of {} (--ctx)", n, ctx);
  for (const Token t : job.prompt.tokens)
    if (t >= model_.n_vocab())
      fail(Errc::InvalidArgument, "token {} is not in the vocabulary of {}", t, model_.n_vocab());
  const std::lock_guard lock(mutex_);
  if (!accepting_ || waiting_.size() >= options_.max_queue) {
    ++stats_.refused;
    if (!accepting_) fail(Errc::Busy, "no more texts are taken: the program is about to end");
    fail(Errc::Busy, "{} texts are waiting already", waiting_.size());
  }
  const JobId id = next_id_++;
  waiting_.push_back(std::make_unique<Text>(id, std::move(job)));
  stats_.waiting = waiting_.size();
  changed_.notify_all();
  return id;
}

void Scheduler::cancel(JobId id) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
  changed_.notify_all();
}

void Scheduler::stop_accepting() {
  const std::lock_guard lock(mutex_);
  accepting_ = false;
}

bool Scheduler::wait_idle(std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [&] { return stats_.running + stats_.waiting == 0; });
}

SchedulerStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// -- the engine's thread

void Scheduler::serve() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock,
                    [&] { return stop_ || !waiting_.empty() || !running_.empty() || !cancelled_.empty(); });
      if (stop_) {
        for (auto& text : running_) cancelled_.push_back(text->id);
        for (auto& text : waiting_) cancelled_.push_back(text->id);
      }
    }
    take_up();
    if (!running_.empty()) step();
    drop_ended();
    const std::lock_guard lock(mutex_);
    if (stop_ && running_.empty() && waiting_.empty()) return;
  }
}

// Ends what was cancelled and begins what has waited longest, as far as there is room.
void Scheduler::take_up() {
  std::vector<std::unique_ptr<Text>> unwanted, fresh;
  {
    const std::lock_guard lock(mutex_);
    for (const JobId id : cancelled_) {
      for (auto& text : running_) text->cancelled |= text->id == id;
      const auto it = std::ranges::find(waiting_, id, &Text::id);
      if (it == waiting_.end()) continue;
      unwanted.push_back(std::move(*it));
      waiting_.erase(it);
    }
    cancelled_.clear();
    const size_t room = options_.parallel - std::min(options_.parallel, running_.size());
    while (!waiting_.empty() && fresh.size() < room) {
      fresh.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    stats_.running = running_.size() + fresh.size() + unwanted.size();
    stats_.waiting = waiting_.size();
  }
  for (auto& text : unwanted) {
    text->cancelled = true;
    text->begun = Clock::now();
    running_.push_back(std::move(text));
  }
  for (auto& text : fresh) {
    running_.push_back(std::move(text));
    begin(*running_.back());
  }
  for (auto& text : running_)
    if (text->cancelled && !text->ended) {
      if (text->generation) text->generation->end(FinishReason::Cancelled);
      end(*text, {});
    }
}

void Scheduler::begin(Text& text) {
  text.begun = Clock::now();
  try {
    const TextPrompt& prompt = text.job.prompt;
    text.run.emplace(model_, prompt.continued ? text.tokens() : std::span<const Token>(), text.job.request,
                     text.job.on_text);
    text.generation.emplace(text.run->options(), text.tokens(), engine_.config().n_vocab,
                            choose_ops(engine_.options().isa));
    text.on_token = [&text](const Sample& sample) {
      if (text.generation->result().tokens.size() == 1) text.first_token = Clock::now();
      text.timer->token();
      return text.run->token(sample);
    };
    if (text.job.request.generate.max_tokens == 0) end(text, {});
  } catch (const Error& e) {
    end(text, e);
  }
}

// What is kept is looked for as late as can be: a text with the same beginning may have been evaluated since.
bool Scheduler::begin_prompt(Text& text) {
  try {
    if (prefixes_) text.history = prefixes_->find(text.tokens());
    if (!text.history) text.history = std::make_unique<History>(engine_, options_.prefixes.history);
    text.n_reused = text.history->position();
    text.history->expect(text.tokens().size() - text.n_reused);
    text.timer.emplace(engine_, text.tokens().size() - text.n_reused);
    return true;
  } catch (const Error& e) {
    end(text, e);
    return false;
  }
}

// One token of every text that is being generated; then, as far as the step has room, tokens of prompts.
Scheduler::StepPlan Scheduler::plan_step() {
  StepPlan plan;
  const auto add = [&plan](Text& text, std::span<const Token> tokens, bool choose) {
    plan.slices.push_back({&text.history->sequence(), plan.tokens.size(), tokens.size()});
    plan.texts.push_back(&text);
    plan.tokens.insert(plan.tokens.end(), tokens.begin(), tokens.end());
    if (!choose) return;
    plan.logit_rows.push_back(static_cast<uint32_t>(plan.tokens.size() - 1));
    plan.chooses.push_back(&text);
  };
  for (auto& text : running_)
    if (!text->ended && text->prompt_left() == 0)
      add(*text, {&text->generation->result().tokens.back(), 1}, true);
  plan.n_decoding = plan.slices.size();
  const size_t chunk = engine_.options().chunk;
  size_t room = chunk - std::min(chunk, plan.n_decoding);
  if (plan.n_decoding > 0) room = std::min(room, options_.busy_chunk);
  for (auto& text : running_) {
    if (text->ended || text->prompt_left() == 0 || room == 0) continue;
    if (!text->history && !begin_prompt(*text)) continue;
    const size_t left = text->prompt_left(), n = std::min(left, room);
    add(*text, text->tokens().subspan(text->history->position(), n), n == left);
    room -= n;
    plan.n_prompt += n;
  }
  return plan;
}

void Scheduler::step() {
  const StepPlan plan = plan_step();
  if (plan.tokens.empty()) return;
  const size_t n_vocab = engine_.config().n_vocab;
  const bool lists = wish_for_lists(plan);
  logits_.resize((lists ? 1 : plan.logit_rows.size()) * n_vocab);
  const auto start = Clock::now();
  try {
    engine_.step({.tokens = plan.tokens,
                  .slices = plan.slices,
                  .logit_rows = plan.logit_rows,
                  .wishes = wishes_,
                  .shortlists = std::span(shortlists_).first(wishes_.size())},
                 std::span(logits_).first(lists ? 0 : logits_.size()));
    for (size_t i = 0; i < plan.texts.size(); ++i) {  // checkpoints need memory
      const Slice& slice = plan.slices[i];
      plan.texts[i]->history->accept(std::span(plan.tokens).subspan(slice.first, slice.count));
    }
  } catch (const Error& e) {
    fail_all(plan, e);
    return;
  }
  {  // before anybody hears of a text's end and asks for the figures
    const std::lock_guard lock(mutex_);
    ++stats_.steps;
    stats_.busy_s += in_seconds(Clock::now() - start);
    stats_.new_tokens += plan.chooses.size();
    stats_.prompt_tokens += plan.n_prompt;
    stats_.device = engine_.device_tier();
  }
  for (size_t i = plan.n_decoding; i < plan.texts.size(); ++i) {
    Text& text = *plan.texts[i];
    if (text.prompt_left() == 0) keep(text, PrefixCache::Where::Memory);
    const auto& on_prompt = text.job.request.generate.on_prompt;
    if (!on_prompt || on_prompt(text.history->position() - text.n_reused)) continue;
    text.generation->end(FinishReason::Cancelled);
    end(text, {});
  }
  for (size_t i = 0; i < plan.chooses.size(); ++i) {
    if (plan.chooses[i]->ended) continue;
    advance(*plan.chooses[i], i, lists);
  }
}

// Where every text that chooses can do with a list, the logits stay where they are.
bool Scheduler::wish_for_lists(const StepPlan& plan) {
  wishes_.clear();
  for (const Text* text : plan.chooses) {
    const std::optional<ShortlistWish> wish =
        engine_.keeps_logits() ? text->generation->wish() : std::nullopt;
    if (!wish) {
      wishes_.clear();
      return false;
    }
    wishes_.push_back(*wish);
  }
  if (shortlists_.size() < wishes_.size()) shortlists_.resize(wishes_.size());
  return !wishes_.empty();
}

void Scheduler::advance(Text& text, size_t row, bool listed) {
  try {
    const size_t position = text.history->position(), n_vocab = engine_.config().n_vocab;
    std::optional<bool> go_on;
    if (listed) {
      go_on = text.generation->advance(shortlists_[row], position, text.on_token);
      if (!go_on) engine_.read_logits(row, std::span(logits_).first(n_vocab));
    }
    if (!go_on) {
      const auto logits = std::span(logits_).subspan(listed ? 0 : row * n_vocab, n_vocab);
      go_on = text.generation->advance(logits, position, text.on_token);
    }
    if (!*go_on || position == text.history->capacity()) end(text, {});
  } catch (const Error& e) {  // the grammar fits no token, say
    end(text, e);
  }
}

void Scheduler::keep(const Text& text, PrefixCache::Where where) {
  if (prefixes_ && text.history && !text.history->broken() && text.history->position() > 0)
    prefixes_->keep(*text.history, where);
}

void Scheduler::fail_all(const StepPlan& plan, const Error& error) {
  for (Text* text : plan.texts) end(*text, error);
}

void Scheduler::end(Text& text, std::optional<Error> error) {
  text.ended = true;
  TextOutcome outcome;
  const auto now = Clock::now();
  outcome.queue_s = in_seconds(text.begun - text.asked);
  outcome.total_s = in_seconds(now - text.asked);
  if (text.generation) {
    try {
      text.run->finish();
    } catch (const Error& e) {
      if (!error) error = e;
    }
    outcome.result.generated = text.generation->result();
    if (!outcome.result.generated.tokens.empty())
      outcome.first_token_s = in_seconds(text.first_token - text.asked);
    outcome.result.text = text.run->text();
    outcome.result.stop_string = text.run->stop_string();
    outcome.result.n_reused = text.n_reused;
    if (text.timer) outcome.result.times = text.timer->times();
  } else if (text.cancelled) {
    outcome.result.generated.finish = FinishReason::Cancelled;
  }
  outcome.error = std::move(error);
  {
    const std::lock_guard lock(mutex_);
    const bool cancelled = outcome.result.generated.finish == FinishReason::Cancelled;
    ++(outcome.error ? stats_.failed : cancelled ? stats_.cancelled : stats_.finished);
    stats_.reused_tokens += text.n_reused;
    if (prefixes_) stats_.prefixes = prefixes_->stats();
  }
  keep(text, PrefixCache::Where::Everywhere);
  text.history.reset();  // its memory is free before anybody hears of it
  if (text.job.on_done) text.job.on_done(std::move(outcome));
}

void Scheduler::drop_ended() {
  if (std::erase_if(running_, [](const auto& text) { return text->ended; }) == 0) return;
  const std::lock_guard lock(mutex_);
  stats_.running = running_.size();
  changed_.notify_all();
}

}  // namespace moeflux
