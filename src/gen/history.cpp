#include "gen/history.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace moeflux {

bool can_always_go_back(const ModelConfig& model) {
  return std::ranges::all_of(
      model.layers, [](const LayerConfig& l) { return l.mixer != Mixer::DeltaNet && l.window == 0; });
}

History::History(Engine& engine, const HistoryOptions& options)
    : History(engine, options, {}, engine.make_sequence()) {}

History::History(Engine& engine, const HistoryOptions& options, std::vector<Token> tokens,
                 std::unique_ptr<Sequence> sequence, std::vector<Checkpoint> checkpoints)
    : engine_(engine),
      options_(options),
      tokens_(std::move(tokens)),
      sequence_(std::move(sequence)),
      checkpoints_(std::move(checkpoints)) {
  check(sequence_->position() == tokens_.size(), "a state that holds the history's tokens");
  const size_t step = Sequence::kWatchStep;
  options_.checkpoint_every =
      can_always_go_back(engine.config()) ? 0 : (options.checkpoint_every + step - 1) / step * step;
  expect(0);
}

History::History(const History& o)
    : engine_(o.engine_),
      options_(o.options_),
      tokens_(o.tokens_),
      sequence_(o.sequence_->copy()),
      checkpoints_(o.checkpoints_) {
  expect(0);
}

std::unique_ptr<History> History::copy() const { return std::unique_ptr<History>(new History(*this)); }

// -- going on

std::vector<float> History::eval(std::span<const Token> tokens, size_t rows, const Tap& tap) {
  check(rows <= tokens.size(), "logits of tokens that were given");
  if (tokens.size() > capacity() - position())
    fail(Errc::InvalidArgument, "{} tokens after {} do not fit in the context of {} (--ctx)", tokens.size(),
         position(), capacity());
  std::vector<float> logits;
  const size_t first_row = tokens.size() - rows, every = options_.checkpoint_every;
  expect(tokens.size());
  for (size_t at = 0, n = 0; at < tokens.size(); at += n) {
    n = tokens.size() - at;
    if (every && !sequence_->copies_inside_steps()) n = std::min(n, every - position() % every);
    const size_t wanted = at + n - std::clamp(first_row, at, at + n);
    try {
      const std::vector<float> part = engine_.eval(*sequence_, tokens.subspan(at, n), wanted, tap);
      logits.insert(logits.end(), part.begin(), part.end());
    } catch (...) {
      const auto done = tokens.subspan(at, sequence_->position() - position());
      tokens_.insert(tokens_.end(), done.begin(), done.end());
      take_checkpoints();
      throw;
    }
    accept(tokens.subspan(at, n));
  }
  return logits;
}

void History::accept(std::span<const Token> tokens) {
  const size_t from = position(), every = options_.checkpoint_every;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  check(sequence_->position() == position(), "tokens that the history's sequence was given");
  take_checkpoints();
  if (position() >= last_wish_) expect(0);
  if (!every || position() / every == from / every) return;
  const Checkpoint* last = last_checkpoint(position());
  if (!last || (*last)->position() <= from) checkpoint();  // none came inside the step
}

void History::take_checkpoints() {
  std::vector<std::unique_ptr<Sequence>> copies = sequence_->take_copies();
  if (copies.empty()) return;
  for (std::unique_ptr<Sequence>& copy : copies) checkpoints_.push_back(std::move(copy));
  drop_checkpoints();
}

// Every so often, and ever closer before the end of a prompt.
void History::expect(size_t n_tokens) {
  constexpr size_t kStep = Sequence::kWatchStep;
  const size_t every = options_.checkpoint_every, end = position() + n_tokens;
  if (!every) return;
  std::vector<size_t> wanted;
  for (size_t p = position() / every * every + every; p <= std::min(end + every, capacity()); p += every)
    wanted.push_back(p);
  for (size_t back = 1; n_tokens >= 2 * kStep && back < n_tokens; back = back == 1 ? kStep : 2 * back)
    if (const size_t p = (end - back) / kStep * kStep; p > position()) wanted.push_back(p);
  std::ranges::sort(wanted);
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  last_wish_ = wanted.empty() ? capacity() + 1 : wanted.back();
  sequence_->watch(std::move(wanted));
}

// -- going back

const History::Checkpoint* History::last_checkpoint(size_t position) const {
  const auto after =
      std::ranges::upper_bound(checkpoints_, position, {}, [](const Checkpoint& c) { return c->position(); });
  return after == checkpoints_.begin() ? nullptr : &*(after - 1);
}

size_t History::nearest(size_t position) const {
  if (sequence_->can_cut(position)) return std::min(position, this->position());
  const Checkpoint* checkpoint = last_checkpoint(position);
  return checkpoint ? (*checkpoint)->position() : 0;
}

size_t History::go_back(size_t position) {
  const size_t to = nearest(position);
  if (!sequence_->cut(to)) {
    const Checkpoint* checkpoint = last_checkpoint(to);
    sequence_ = checkpoint ? (*checkpoint)->copy() : engine_.make_sequence();
  }
  tokens_.resize(to);
  std::erase_if(checkpoints_, [&](const Checkpoint& c) { return c->position() > to; });
  expect(0);
  return to;
}

void History::cut(size_t to) {
  if (to > position())
    fail(Errc::InvalidArgument, "cannot cut at position {}: the text has {} tokens", to, position());
  const size_t from = nearest(to);
  if (from == to) {
    go_back(to);
    return;
  }
  if (to - from > options_.most_recompute)
    fail(Errc::Unsupported,
         "cutting at position {} needs {} tokens to be evaluated again, more than the {} that are allowed: "
         "the "
         "nearest checkpoint is at {}",
         to, to - from, options_.most_recompute, from);
  const std::unique_ptr<History> again = copy();
  again->go_back(to);
  again->eval(std::span(tokens_).subspan(from, to - from), 0);
  tokens_.resize(to);
  sequence_ = std::move(again->sequence_);
  checkpoints_ = std::move(again->checkpoints_);
  last_wish_ = again->last_wish_;
}

// -- checkpoints

void History::checkpoint() {
  if (broken())
    fail(Errc::InvalidArgument, "a text whose last step failed half-way cannot have a checkpoint");
  const Checkpoint* last = last_checkpoint(position());
  if (last && (*last)->position() == position()) return;
  checkpoints_.push_back(sequence_->copy());
  drop_checkpoints();
}

void History::restore_to(size_t position) {
  const Checkpoint* checkpoint = last_checkpoint(position);
  if (!checkpoint || (*checkpoint)->position() != position)
    fail(Errc::NotFound, "there is no checkpoint at position {}", position);
  go_back(position);
}

std::vector<size_t> History::checkpoints() const {
  std::vector<size_t> positions;
  for (const Checkpoint& c : checkpoints_) positions.push_back(c->position());
  return positions;
}

uint64_t History::checkpoint_bytes() const {
  std::unordered_map<const void*, uint64_t> parts;
  for (const Checkpoint& c : checkpoints_)
    for (const MemoryPart& part : c->memory()) parts.emplace(part.id, part.bytes);
  for (const MemoryPart& part : sequence_->memory()) parts.erase(part.id);
  uint64_t sum = 0;
  for (const auto& [id, bytes] : parts) sum += bytes;
  return sum;
}

// A checkpoint is dropped where that makes the way back to the one before least long, compared with how far
// back that is.
void History::drop_checkpoints() {
  while (!checkpoints_.empty() && checkpoint_bytes() > options_.checkpoint_bytes) {
    size_t worst = checkpoints_.size() - 1;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0, before = 0; i + 1 < checkpoints_.size(); before = checkpoints_[i++]->position()) {
      const double gap = static_cast<double>(checkpoints_[i + 1]->position() - before),
                   age = static_cast<double>(position() - before);
      if (gap / age < least) least = gap / age, worst = i;
    }
    checkpoints_.erase(checkpoints_.begin() + static_cast<ptrdiff_t>(worst));
  }
}

}  // namespace moeflux
