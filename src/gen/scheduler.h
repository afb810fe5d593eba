// Many texts at once. One thread evaluates, in one step, the next token of every text that is being generated
// and a piece of a prompt that waits: an expert that several texts choose is read and fetched once. Texts are
// taken in the order of asking; those under way advance together, a token each.
//
// What a prompt has in common with an earlier text whose state is kept is not evaluated again.
//
// A step that fails (a read error) ends the texts that were in it, each with the error; the next ones go on.
//
// submit, cancel and stats may be called by any thread, also from the callbacks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "gen/prefix_cache.h"
#include "gen/text_session.h"

namespace moeflux {

using JobId = uint64_t;

struct TextOutcome {
  std::optional<Error> error = {};  // then the result is what there was before
  TextResult result = {};
  double queue_s = 0;        // until it was taken up
  double first_token_s = 0;  // from asking to the first token; 0: there was none
  double total_s = 0;
};

// Callbacks come on the engine's thread and must be quick: everybody waits for them.
struct TextJob {
  TextPrompt prompt;
  // Its on_prompt is told of the tokens that are evaluated, not of those reused; no tokens are guessed ahead.
  TextRequest request = {};
  OnText on_text = {};
  std::function<void(TextOutcome)> on_done = {};  // once for every job, perhaps before submit returns
};

struct SchedulerOptions {
  size_t parallel = 4;    // texts under way
  size_t max_queue = 64;  // texts that wait
  // Tokens of prompts in a step while texts are generated: the more, the longer a prompt holds them up.
  size_t busy_chunk = 256;
  PrefixCacheOptions prefixes = {};  // no bytes of memory and no folder: nothing is kept
};

struct SchedulerStats {
  size_t running = 0, waiting = 0;
  uint64_t steps = 0, finished = 0, failed = 0, cancelled = 0, refused = 0;
  uint64_t prompt_tokens = 0, reused_tokens = 0, new_tokens = 0;
  double busy_s = 0;  // in steps
  PrefixCacheStats prefixes = {};
  DeviceTierStats device = {};
};

class Scheduler {
 public:
  // The engine is the scheduler's alone for as long as it lives. The model's tables are made here, so that
  // other threads may use it as well.
  Scheduler(Engine& engine, const TextModel& model, const SchedulerOptions& options);
  ~Scheduler();  // cancels what is left

  // Throws Error{InvalidArgument} for a prompt that is empty or leaves no room in the context, Error{Busy}
  // where too many wait or no more are taken.
  JobId submit(TextJob job);
  void cancel(JobId id);  // of a job that has ended: nothing

  void stop_accepting();
  bool wait_idle(std::chrono::milliseconds longest);  // false: some are still under way

  SchedulerStats stats() const;
  const SchedulerOptions& options() const { return options_; }

 private:
  struct Text;
  struct StepPlan;
  using Clock = std::chrono::steady_clock;

  void serve();
  void take_up();
  void begin(Text& text);
  bool begin_prompt(Text& text);
  StepPlan plan_step();
  void step();
  bool wish_for_lists(const StepPlan& plan);
  void advance(Text& text, size_t row, bool listed);
  void keep(const Text& text, PrefixCache::Where where);
  void fail_all(const StepPlan& plan, const Error& error);
  void end(Text& text, std::optional<Error> error);
  void drop_ended();

  Engine& engine_;
  const TextModel& model_;
  const SchedulerOptions options_;

  mutable std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Text>> waiting_;
  std::vector<JobId> cancelled_;
  SchedulerStats stats_;
  JobId next_id_ = 1;
  bool accepting_ = true, stop_ = false;

  // Of the engine's thread alone.
  std::optional<PrefixCache> prefixes_;
  std::vector<std::unique_ptr<Text>> running_;
  std::vector<float> logits_;
  std::vector<ShortlistWish> wishes_;  // of a step: empty, or of each row
  std::vector<Shortlist> shortlists_;
  std::jthread thread_;
};

}  // namespace moeflux
