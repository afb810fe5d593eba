#include "api/context_state.h"

#include <algorithm>

#include "api/handles.h"

namespace moeflux::api {

Sequence& TokenSequence::state(const std::shared_ptr<ModelState>& model) {
  check_usable();
  if (!room_) room_ = std::make_unique<SequenceRoom>(model);
  if (!state_) state_ = model->engine.make_sequence();
  return *state_;
}

void TokenSequence::check_usable() const {
  if (broken_)
    throw Failure(MOEFLUX_BROKEN,
                  "a step of this sequence failed half-way: clear it, or restore it, to go on");
}

void TokenSequence::accept(std::span<const Token> tokens) {
  tokens_.resize(n_evaluated() - tokens.size());  // without the pending one, which is among them
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void TokenSequence::clear() {
  state_.reset();
  room_.reset();
  tokens_.clear();
  broken_ = false;
}

bool TokenSequence::cut(size_t position) {
  if (position >= n_evaluated()) {
    tokens_.resize(position);
    return true;
  }
  if (position > 0) return false;
  clear();
  return true;
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
    try {
      for (const auto& [number, n] : order_) make_sequence(number, n);
    } catch (...) {
      for (const auto& [number, n] : order_)
        if (context_.sequence(number).size() == 0) context_.sequence(number).clear();
      throw;
    }
  }

  std::optional<StepPlan> next(size_t chunk) {
    if (at_ == items_.size()) return {};
    StepPlan step;
    for (; at_ < items_.size() && step.tokens.size() < chunk; ++at_) {
      const Item& item = items_[at_];
      if (step.sequences.empty() || step.sequences.back() != item.sequence) {
        step.sequences.push_back(item.sequence);
        step.slices.push_back({&item.sequence->state(context_.shared_model()), step.tokens.size(), 0});
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
    const Sequence& state = context_.sequence(number).state(context_.shared_model());
    if (n_tokens > state.capacity() - state.position())
      refuse("{} tokens after {} do not fit in the context of {} (sequence {})", n_tokens, state.position(),
             state.capacity(), number);
  }

  ContextState& context_;
  std::vector<std::pair<uint32_t, size_t>>
      order_;  // sequences, and how many tokens are to be evaluated of each
  std::vector<Item> items_;
  size_t at_ = 0;
};

void run_step(ModelState& model, const StepPlan& step, std::span<float> logits) {
  const std::lock_guard turn(model.turns);
  try {
    model.engine.step({step.tokens, step.slices, step.rows}, logits);
  } catch (...) {
    for (TokenSequence* sequence : step.sequences) sequence->set_broken();
    throw;
  }
  ++model.n_steps;
  model.n_tokens += step.tokens.size();
}

}  // namespace

void evaluate(ContextState& context, const EvalRequest& request, std::span<float> logits,
              const CancelWatch& watch) {
  ModelState& model = context.model();
  const size_t n_vocab = model.engine.config().n_vocab;
  StepPlanner planner(context, request);
  planner.make_sequences();
  std::vector<float> step_logits;
  while (const auto step = planner.next(model.engine.options().chunk)) {
    if (watch.cancelled()) throw Failure(MOEFLUX_CANCELLED, "the evaluation was cancelled");
    step_logits.resize(step->rows.size() * n_vocab);
    run_step(model, *step, step_logits);
    for (size_t i = 0; i < step->slices.size(); ++i)
      step->sequences[i]->accept(
          std::span(step->tokens).subspan(step->slices[i].first, step->slices[i].count));
    for (size_t i = 0; i < step->out_rows.size(); ++i)
      std::copy_n(step_logits.begin() + static_cast<ptrdiff_t>(i * n_vocab), n_vocab,
                  logits.begin() + static_cast<ptrdiff_t>(step->out_rows[i] * n_vocab));
  }
}

}  // namespace moeflux::api
