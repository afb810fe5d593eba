// What a model handle stands for: an engine, and what the package knows about text. Contexts and samplers
// share it, and it goes with the last of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "api/call.h"
#include "gen/engine.h"
#include "gen/text_model.h"

namespace moeflux::api {

// A mutex whose waiters come in the order in which they asked: steps of several contexts take turns.
class TurnLock {
 public:
  void lock();  // throws a Failure with MOEFLUX_BUSY where this thread has the turn: it is in a callback
  void unlock();
  bool is_mine() const;

 private:
  mutable std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  uint64_t next_ = 0, serving_ = 0;
  std::thread::id owner_;
};

// The caller's functions for progress and messages; one call at a time.
class Callbacks {
 public:
  explicit Callbacks(const moeflux_open_options& options)
      : on_progress_(options.on_progress), on_log_(options.on_log), user_(options.user) {}
  void progress(const ProgressReport& report);
  void log(LogLevel level, std::string_view message);
  void end();  // none is called after this returns

 private:
  std::recursive_mutex mutex_;  // guards both, and is held while they are called, which may end them
  moeflux_progress_fn on_progress_;
  moeflux_log_fn on_log_;
  void* const user_;
};

struct ModelState {
  ModelState(const fs::path& package, const moeflux_open_options& options);

  bool has_text() const { return text_.has_value(); }
  bool has_template();
  const TextModel& text() const;  // throws Error{NotFound} where the package has none

  Callbacks callbacks;
  Engine engine;
  TurnLock turns;         // held while the engine works
  std::mutex text_mutex;  // held while template and token tables are used: they are made when first asked for
  std::atomic<uint64_t> n_steps = 0, n_tokens = 0;
  std::atomic<uint64_t> n_sequences = 0;  // that hold state now, in all contexts

 private:
  std::optional<TextModel> text_;
};

// One of the sequences that the plan has memory for, for as long as it lives.
class SequenceRoom {
 public:
  explicit SequenceRoom(std::shared_ptr<ModelState> model);  // throws Error{OutOfMemory}
  SequenceRoom(const SequenceRoom&) = delete;
  SequenceRoom& operator=(const SequenceRoom&) = delete;
  ~SequenceRoom() { --model_->n_sequences; }

 private:
  std::shared_ptr<ModelState> model_;
};

}  // namespace moeflux::api
