#include "store/loader.h"

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/threads.h"

namespace moeflux {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr std::chrono::milliseconds kTurn{5};  // how long new loads may wait behind reads that do not return
// Threads beside the reading one, which tells of what arrives itself while that is one piece at a time: it is
// awake, and another would have to be woken. Records that arrive together, as the last ones of a burst do,
// are told of by several.
constexpr size_t kHelpers = 2;

}  // namespace

Loader::Loader(std::unique_ptr<ReadQueue> queue, const ReadSettings& settings, Arrived arrived, Done done)
    : settings_(settings),
      arrived_(std::move(arrived)),
      done_(std::move(done)),
      queue_(std::move(queue)),
      in_flight_(queue_->depth()) {
  for (size_t i = 0; i < queue_->depth(); ++i) free_tags_.push_back(i);
  start_threads(
      kHelpers + 1, [this](size_t i) { i < kHelpers ? help() : serve(); }, [this] { end(); }, threads_);
}

Loader::~Loader() { end(); }

void Loader::end() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  to_tell_.notify_all();
}

void Loader::start(uint64_t tag, const Load& load, Urgency urgency) {
  const std::lock_guard lock(mutex_);
  State state;
  state.load = load;
  state.urgency = urgency;
  state.piece_bytes = urgency == Urgency::Bulk ? settings_.bulk_piece_bytes : settings_.piece_bytes;
  state.n_pieces = state.pieces_left = piece_count(load.into.size(), state.piece_bytes);
  state.here.resize(state.n_pieces);
  check(loads_.emplace(tag, state).second, "one load at a time under a tag");
  line(urgency).push_back(tag);
  started_ = true;
}

void Loader::go() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(started_, false)) return;  // woken for nothing, the thread takes a core from others
  }
  wake_.notify_one();
}

void Loader::promote(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const auto it = loads_.find(tag);
  if (it == loads_.end() || it->second.urgency == Urgency::Demand) return;
  const Urgency before = std::exchange(it->second.urgency, Urgency::Demand);
  if (std::erase(line(before), tag)) line(Urgency::Demand).push_back(tag);
}

bool Loader::cancel(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const auto it = loads_.find(tag);
  if (it == loads_.end() || it->second.next_piece > 0) return false;
  std::erase(line(it->second.urgency), tag);
  loads_.erase(it);
  return true;
}

void Loader::abandon(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const auto it = loads_.find(tag);
  if (it != loads_.end()) it->second.closed = true;
}

void Loader::serve() {
  std::vector<ReadDone> done(in_flight_.size());
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] {
      const bool new_ones =
          !started_ && std::ranges::any_of(lines_, [](const auto& line) { return !line.empty(); });
      return stop_ || new_ones || !rests_.empty() || can_tell() || free_tags_.size() < in_flight_.size();
    });
    if (stop_) {
      for (auto& line : lines_) line.clear();
      rests_.clear();
      if (free_tags_.size() == in_flight_.size()) return;
    }
    fill_requests();
    const bool reading = free_tags_.size() < in_flight_.size();
    const auto limit = can_tell() ? std::chrono::milliseconds(0) : kTurn;
    lock.unlock();
    if (!requests_.empty()) {
      check(queue_->submit(requests_) == requests_.size(), "room for as many reads as the queue is deep");
      requests_.clear();
    }
    const size_t n = reading ? queue_->wait(done, limit) : 0;
    lock.lock();
    for (const ReadDone& d : std::span(done).first(n)) handle(d);
    // A piece at a time: checking bytes must not let the queue run dry.
    if (can_tell()) tell_one(settings_.piece_bytes, lock);
  }
}

void Loader::help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    to_tell_.wait(lock, [&] { return stop_ || can_tell(); });
    if (stop_) return;
    tell_one(SIZE_MAX, lock);
  }
}

// The first event of a load that nobody is telling of.
std::deque<Loader::Event>::iterator Loader::next_event() {
  return std::ranges::find_if(events_, [&](const Event& e) { return !being_told_.contains(e.tag); });
}

void Loader::tell_one(size_t most_bytes, std::unique_lock<std::mutex>& lock) {
  const auto it = next_event();
  Event event = *it;
  if (event.bytes.size() > most_bytes) {
    event.bytes = event.bytes.first(most_bytes);
    it->bytes = it->bytes.subspan(most_bytes);
  } else {
    events_.erase(it);
  }
  being_told_.insert(event.tag);
  lock.unlock();
  event.result ? done_(event.tag, *event.result) : arrived_(event.tag, event.bytes);
  lock.lock();
  being_told_.erase(event.tag);
}

void Loader::fill_requests() {
  while (!free_tags_.empty() && !rests_.empty()) {
    request(rests_.front());
    rests_.pop_front();
  }
  fill_requests(Urgency::Demand, settings_.depth);
  if (line(Urgency::Demand).empty()) fill_requests(Urgency::Bulk, in_flight_.size());
  // What is needed next must not wait long behind guesses.
  fill_requests(Urgency::Guess, std::max<size_t>(2, settings_.depth / 4));
}

// Until `most` are in flight.
void Loader::fill_requests(Urgency urgency, size_t most) {
  Piece piece;
  while (!free_tags_.empty() && in_flight_.size() - free_tags_.size() < most &&
         next_piece(line(urgency), piece))
    request(piece);
}

bool Loader::next_piece(std::deque<uint64_t>& line, Piece& piece) {
  while (!line.empty()) {
    const uint64_t tag = line.front();
    State& s = loads_.at(tag);
    if (s.closed) {
      line.pop_front();
      finish_if_complete(tag, s);
      continue;
    }
    const PieceRange range = piece_of(s.load.into.size(), s.piece_bytes, s.next_piece);
    piece = {tag, range.begin, range.end, s.next_piece++};
    ++s.in_flight;
    if (s.next_piece == s.n_pieces) line.pop_front();
    return true;
  }
  return false;
}

void Loader::request(const Piece& piece) {
  const Load& load = loads_.at(piece.tag).load;
  const size_t tag = free_tags_.back();
  free_tags_.pop_back();
  in_flight_[tag] = piece;
  requests_.push_back({load.file->fd(), load.offset + piece.begin,
                       load.into.subspan(piece.begin, piece.end - piece.begin), tag});
}

void Loader::handle(const ReadDone& done) {
  Piece piece = in_flight_[done.tag];
  free_tags_.push_back(done.tag);
  State& s = loads_.at(piece.tag);
  bytes_arrived_.fetch_add(done.bytes, std::memory_order_relaxed);
  const uint64_t reached = piece.begin + done.bytes;
  // Reads past the page cache start at whole blocks, so one that ends inside a block is resumed at its start.
  const uint64_t resume = reached / kBlock * kBlock;
  if (done.err != 0 && done.err != EINTR && done.err != EAGAIN) {
    s.result.err = done.err;
    s.closed = true;
  } else if (reached == piece.end) {
    piece_is_here(piece, s);
  } else if (done.err == 0 && resume <= piece.begin) {
    s.result.end = s.load.offset + reached;
    s.closed = true;
  } else if (!s.closed && !stop_) {
    piece.begin = std::max(piece.begin, resume);
    rests_.push_back(piece);
    return;
  }
  --s.in_flight;
  finish_if_complete(piece.tag, s);
}

void Loader::piece_is_here(const Piece& piece, State& s) {
  --s.pieces_left;
  s.here[piece.index] = true;
  const size_t from = s.in_order;
  while (s.in_order < s.n_pieces && s.here[s.in_order]) ++s.in_order;
  if (s.in_order == from) return;
  const uint64_t begin = piece_of(s.load.into.size(), s.piece_bytes, from).begin;
  const uint64_t end = piece_of(s.load.into.size(), s.piece_bytes, s.in_order - 1).end;
  add_event({piece.tag, s.load.into.subspan(begin, end - begin), {}});
}

void Loader::add_event(const Event& event) {
  const bool others = !events_.empty() && events_.back().tag != event.tag;
  events_.push_back(event);
  if (others) to_tell_.notify_one();
}

void Loader::finish_if_complete(uint64_t tag, State& s) {
  if (s.in_flight > 0 || (s.pieces_left > 0 && !s.closed)) return;
  if (s.pieces_left > 0 && s.result.ok()) s.result.err = ECANCELED;
  std::erase(line(s.urgency), tag);
  add_event({tag, {}, s.result});
  loads_.erase(tag);
}

}  // namespace moeflux
