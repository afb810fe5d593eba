// A recording of what happened when, in the format that chrome://tracing and Perfetto read: spans of the
// calling thread, and spans that begin and end on different threads (reads). Everything is kept in memory, up
// to a bound, and written when the trace is closed. Where nothing is traced the pointer is null and a Span
// costs a comparison. All calls may come from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace moeflux {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  // Creates the file at once, so that a path that cannot be written is refused before the work. Events beyond
  // `most_events` are counted, not kept; the file says how many.
  explicit Trace(const std::filesystem::path& path, size_t most_events = 4'000'000);
  ~Trace();      // closes; an error is then reported on stderr
  void close();  // throws Error{Io | NoSpace}; what comes later is not recorded

  // `category` and `name` are string literals without quotes or backslashes: they are kept as they are.
  void span(const char* category, const char* name, Clock::time_point begin, Clock::time_point end,
            int64_t layer = -1, int64_t expert = -1);
  // A span that overlaps others on an own track, such as a read in flight.
  void async_span(const char* category, const char* name, Clock::time_point begin, Clock::time_point end,
                  int64_t layer, int64_t expert, uint64_t bytes);
  void name_thread(std::string_view name);  // of the calling thread

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class TraceSpan {  // from construction to destruction
 public:
  TraceSpan(Trace* trace, const char* category, const char* name, int64_t layer = -1)
      : trace_(trace), category_(category), name_(name), layer_(layer) {
    if (trace_) begin_ = Trace::Clock::now();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (trace_) trace_->span(category_, name_, begin_, Trace::Clock::now(), layer_);
  }

 private:
  Trace* trace_;
  const char *category_, *name_;
  int64_t layer_;
  Trace::Clock::time_point begin_;
};

}  // namespace moeflux
