#include "api/context_state.h"

#include <algorithm>

#include "api/handles.h"

namespace moeflux::api {

std::span<const Token> TokenSequence::evaluated() const {
  return history_ ? history_->tokens() : std::span<const Token>();
}

std::vector<Token> TokenSequence::tokens() const {
  std::vector<Token> all(evaluated().begin(), evaluated().end());
  all.insert(all.end(), pending_.begin(), pending_.end());
  return all;
}

void TokenSequence::check_usable() const {
  if (broken())
    throw Failure(
        MOEFLUX_BROKEN,
        "a step of this sequence failed half-way: clear it, remove a part of it or restore it, to go on");
}

void TokenSequence::make_room(const std::shared_ptr<ModelState>& model) {
  if (!room_) room_ = std::make_unique<SequenceRoom>(model);
}

History& TokenSequence::history(const std::shared_ptr<ModelState>& model, const HistoryOptions& options) {
  check_usable();
  make_room(model);
  if (!history_) history_ = std::make_unique<History>(model->engine, options);
  return *history_;
}

History& TokenSequence::held() {
  if (!history_) refuse("the sequence is empty");
  check_usable();
  return *history_;
}

void TokenSequence::accept(std::span<const Token> tokens) {
  if (tokens.empty()) return;
  pending_.clear();  // it was the first of them
  history_->accept(tokens);
}

void TokenSequence::drain() {
  if (pending_.empty()) return;
  held().eval(pending_, 0);
  pending_.clear();
}

void TokenSequence::clear() {
  history_.reset();
  room_.reset();
  pending_.clear();
}

void TokenSequence::release_unused() {
  if (size() == 0 && !broken()) clear();
}

void TokenSequence::remove(size_t begin, size_t end) {
  end = std::min(end, size());
  if (begin > end) refuse("there is nothing from {} to {}: the sequence has {} tokens", begin, end, size());
  if (begin == 0 && end == size()) return clear();
  const std::vector<Token> all = tokens();
  const size_t n_evaluated = evaluated().size();
  if (begin >= n_evaluated) {  // only what is pending
    if (end > begin) pending_.clear();
    if (broken()) history_->cut(n_evaluated);
    return;
  }
  if (end >= n_evaluated) {
    history_->cut(begin);
    if (end == all.size()) pending_.clear();
    return;
  }
  // What follows has other tokens before it now, at other positions: it is evaluated again, aside, so that a
  // failure leaves everything as it was.
  std::unique_ptr<History> changed = history_->copy();
  changed->cut(begin);
  changed->eval(std::span(all).subspan(end, n_evaluated - end), 0);
  history_ = std::move(changed);
}

std::vector<size_t> TokenSequence::checkpoints() const {
  return history_ ? history_->checkpoints() : std::vector<size_t>();
}

void TokenSequence::restore_to(size_t position) {
  if (!history_)
    fail(Errc::NotFound, "there is no checkpoint at position {}: the sequence is empty", position);
  history_->restore_to(position);
  pending_.clear();
}

size_t TokenSequence::go_back(size_t position) {
  pending_.clear();
  return history_ ? history_->go_back(position) : 0;
}

void TokenSequence::copy_from(const TokenSequence& other, const std::shared_ptr<ModelState>& model) {
  if (&other == this) return;
  other.check_usable();
  if (!other.history_) return clear();
  replace(other.history_->copy(), model);
  pending_ = other.pending_;
}

void TokenSequence::replace(std::unique_ptr<History> history, const std::shared_ptr<ModelState>& model) {
  make_room(model);
  history_ = std::move(history);
  pending_.clear();
}

ContextState::~ContextState() {
  std::unique_lock turn(model_->turns, std::defer_lock);
  if (!model_->turns.is_mine()) turn.lock();
  sequences_.clear();
}

TokenSequence& ContextState::sequence(uint32_t number) {
  if (number >= sequences_.size())
    refuse("there is no sequence {}: the context has {}, counted from 0", number, sequences_.size());
  return sequences_[number];
}

CancelWatch::CancelWatch(const ContextState& context, const moeflux_cancel* cancel) : context_(context) {
  if (cancel) cancel_ = find_handle(cancel);
}

namespace {

// One step's tokens, sequence by sequence.
struct StepPlan {
  std::vector<Token> tokens;
  std::vector<Slice> slices;
  std::vector<uint32_t> rows;             // of the step: tokens whose logits are wanted
  std::vector<size_t> out_rows;           // where each of these goes
  std::vector<TokenSequence*> sequences;  // of the slices
};

// Cuts a request into steps of at most `chunk` tokens. Sequences come one after the other, each with its
// pending token first.
class StepPlanner {
  struct Item {
    TokenSequence* sequence;
    Token token;
    std::optional<size_t> row;  // of the result
  };

 public:
  StepPlanner(ContextState& context, const EvalRequest& request) : context_(context) {
    std::vector<std::vector<Item>> of_sequence(context.n_sequences());
    size_t n_rows = 0;
    for (size_t i = 0; i < request.tokens.size(); ++i) {
      const uint32_t number = request.sequences[i];
      std::vector<Item>& list = of_sequence[number];
      TokenSequence& sequence = context.sequence(number);
      if (list.empty()) {
        order_.push_back({number, 0});
        for (const Token token : sequence.pending()) list.push_back({&sequence, token, {}});
      }
      list.push_back({&sequence, request.tokens[i], {}});
      if (request.wanted[i]) list.back().row = n_rows++;
    }
    for (auto& [number, n_tokens] : order_) {
      const std::vector<Item>& list = of_sequence[number];
      n_tokens = list.size();
      items_.insert(items_.end(), list.begin(), list.end());
    }
  }

  // Throws before anything is evaluated.
  void make_sequences() {
    for (const auto& [number, n] : order_) make_sequence(number, n);
  }
  void release_unused() {
    for (const auto& [number, n] : order_) context_.sequence(number).release_unused();
  }

  std::optional<StepPlan> next(size_t chunk) {
    if (at_ == items_.size()) return {};
    StepPlan step;
    for (; at_ < items_.size() && step.tokens.size() < chunk; ++at_) {
      const Item& item = items_[at_];
      if (step.sequences.empty() || step.sequences.back() != item.sequence) {
        step.sequences.push_back(item.sequence);
        step.slices.push_back({&context_.history(*item.sequence).sequence(), step.tokens.size(), 0});
      }
      ++step.slices.back().count;
      if (item.row) {
        step.rows.push_back(static_cast<uint32_t>(step.tokens.size()));
        step.out_rows.push_back(*item.row);
      }
      step.tokens.push_back(item.token);
    }
    return step;
  }

 private:
  void make_sequence(uint32_t number, size_t n_tokens) {
    History& history = context_.history(context_.sequence(number));
    if (n_tokens > history.capacity() - history.position())
      refuse("{} tokens after {} do not fit in the context of {} (sequence {})", n_tokens, history.position(),
             history.capacity(), number);
    history.expect(n_tokens);
  }

  ContextState& context_;
  std::vector<std::pair<uint32_t, size_t>> order_;  // sequences, and how many tokens each has to evaluate
  std::vector<Item> items_;
  size_t at_ = 0;
};

void run_steps(ModelState& model, StepPlanner& planner, std::span<float> logits, const CancelWatch& watch,
               std::unique_lock<TurnLock>& turn) {
  const size_t n_vocab = model.engine.config().n_vocab;
  std::vector<float> step_logits;
  while (const auto step = planner.next(model.engine.options().chunk)) {
    turn.unlock();  // others may come in between
    if (watch.cancelled()) throw Failure(MOEFLUX_CANCELLED, "the evaluation was cancelled");
    turn.lock();
    step_logits.resize(step->rows.size() * n_vocab);
    model.engine.step({step->tokens, step->slices, step->rows}, step_logits);
    ++model.n_steps;
    model.n_tokens += step->tokens.size();
    for (size_t i = 0; i < step->slices.size(); ++i)
      step->sequences[i]->accept(
          std::span(step->tokens).subspan(step->slices[i].first, step->slices[i].count));
    for (size_t i = 0; i < step->out_rows.size(); ++i)
      std::copy_n(step_logits.begin() + static_cast<ptrdiff_t>(i * n_vocab), n_vocab,
                  logits.begin() + static_cast<ptrdiff_t>(step->out_rows[i] * n_vocab));
  }
}

}  // namespace

void evaluate(ContextState& context, const EvalRequest& request, std::span<float> logits,
              const CancelWatch& watch) {
  ModelState& model = context.model();
  StepPlanner planner(context, request);
  std::unique_lock turn(model.turns);
  try {
    planner.make_sequences();
    run_steps(model, planner, logits, watch, turn);
  } catch (...) {
    if (!turn.owns_lock()) turn.lock();
    planner.release_unused();
    throw;
  }
}

}  // namespace moeflux::api
