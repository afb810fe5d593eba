// Brings records from files into memory: one thread that keeps a read queue full with the pieces of all
// records that are wanted, and others that help it to tell what has arrived. What is needed now goes before
// what is read in bulk, and that before what is only guessed; a guess of which nothing has been asked of the
// drive can be taken back. Short reads are resumed. It knows nothing of experts or slots.
//
// start, promote and cancel may be called by any thread. On threads of the loader, with no lock held,
// `arrived` is called with a load's bytes, in order, as soon as what is before them has arrived as well, and
// `done` once for each load that is not cancelled, when no read of it is in flight any more. Calls for one
// load follow each other, those for several loads may run at the same time. They should be short: one of the
// threads is the one that reads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "io/drive.h"

namespace moeflux {

struct Load {
  const File* file = nullptr;
  uint64_t offset = 0;
  std::span<std::byte> into;
};

struct LoadResult {
  int err = 0;                  // 0 or an errno
  std::optional<uint64_t> end;  // the file ended here, too early
  bool ok() const { return err == 0 && !end; }
};

// Bulk: all of many records will be needed, and nobody waits for a single one.
enum class Urgency : uint8_t { Demand, Bulk, Guess };

class Loader {
 public:
  using Arrived = std::function<void(uint64_t tag, std::span<const std::byte>)>;
  using Done = std::function<void(uint64_t tag, const LoadResult&)>;

  Loader(std::unique_ptr<ReadQueue> queue, const ReadSettings& settings, Arrived arrived, Done done);
  ~Loader();  // drops what has not been asked of the drive, waits for the rest

  // Begins with the next `go`, so that reads of loads that are begun together are submitted together; before
  // it where other reads are under way.
  void start(uint64_t tag, const Load& load, Urgency urgency);
  void go();
  void promote(uint64_t tag);  // a load that is needed now
  bool cancel(uint64_t tag);   // true: nothing of it is in flight, and `done` will not be called
  // Asks nothing more of the drive for this load; `done` is called once what is in flight has come back.
  void abandon(uint64_t tag);

  uint64_t bytes_arrived() const { return bytes_arrived_.load(std::memory_order_relaxed); }
  std::string_view queue_name() const { return queue_->name(); }

 private:
  struct State {
    Load load;
    Urgency urgency = Urgency::Demand;
    size_t piece_bytes = 0;  // at most
    size_t n_pieces = 0, next_piece = 0, pieces_left = 0, in_flight = 0;
    std::vector<bool> here;  // by piece
    size_t in_order = 0;     // pieces from the first on that have arrived
    LoadResult result;
    bool closed = false;  // failed or abandoned: no further piece is asked for
  };
  struct Piece {
    uint64_t tag = 0, begin = 0, end = 0;  // bytes of the record
    size_t index = 0;
  };
  struct Event {  // bytes that arrived, or the end of a load
    uint64_t tag = 0;
    std::span<const std::byte> bytes = {};
    std::optional<LoadResult> result = {};
  };

  void serve();
  void help();
  void end();
  std::deque<Event>::iterator next_event();
  bool can_tell() { return next_event() != events_.end(); }
  void tell_one(size_t most_bytes, std::unique_lock<std::mutex>& lock);
  void fill_requests();
  std::deque<uint64_t>& line(Urgency urgency) { return lines_[static_cast<size_t>(urgency)]; }
  void fill_requests(Urgency urgency, size_t most);
  bool next_piece(std::deque<uint64_t>& line, Piece& piece);
  void request(const Piece& piece);
  void handle(const ReadDone& done);
  void piece_is_here(const Piece& piece, State& state);
  void finish_if_complete(uint64_t tag, State& state);
  void add_event(const Event& event);

  const ReadSettings settings_;
  const Arrived arrived_;
  const Done done_;
  std::unique_ptr<ReadQueue> queue_;
  std::atomic<uint64_t> bytes_arrived_ = 0;

  std::mutex mutex_;  // guards the following
  std::condition_variable wake_, to_tell_;
  std::unordered_map<uint64_t, State> loads_;
  std::deque<uint64_t> lines_[3];  // by urgency: loads with pieces that have not been asked for
  bool started_ = false;           // loads since the last go
  std::deque<Event> events_;       // to be told
  std::set<uint64_t> being_told_;  // loads
  bool stop_ = false;

  // Of the reading thread alone.
  std::vector<Piece> in_flight_;  // by request tag
  std::vector<size_t> free_tags_;
  std::deque<Piece> rests_;  // of reads that came back short
  std::vector<ReadRequest> requests_;
  std::vector<std::jthread> threads_;
};

}  // namespace moeflux
