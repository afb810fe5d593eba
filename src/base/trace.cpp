#include "base/trace.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/owned.h"

namespace moeflux {
namespace {

struct Event {
  const char *category, *name;
  int64_t begin_ns, end_ns;  // since the trace was made
  int64_t layer, expert;
  uint64_t bytes;
  pid_t thread;
  bool async;
};

void write_all(const Fd& fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(errno, path + ": writing the trace");
    text.remove_prefix(static_cast<size_t>(n));
  }
}

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

using Text = std::back_insert_iterator<std::string>;

// The fields that every event has; `phase` is the format's word for its kind.
void put_head(Text out, const char* phase, const Event& e, int64_t at_ns) {
  fmt::format_to(out, R"({{"ph":"{}","cat":"{}","name":"{}","pid":1,"tid":{},"ts":{:.3f})", phase, e.category,
                 e.name, e.thread, microseconds(at_ns));
}

void put_arguments(Text out, const Event& e) {
  const char* separator = "";
  fmt::format_to(out, R"(,"args":{{)");
  const auto put = [&](const char* name, auto value) {
    fmt::format_to(out, R"({}"{}":{})", separator, name, value);
    separator = ",";
  };
  if (e.layer >= 0) put("layer", e.layer);
  if (e.expert >= 0) put("expert", e.expert);
  if (e.async) put("bytes", e.bytes);
  fmt::format_to(out, "}}}}");
}

void put_event(Text out, const Event& e, size_t number) {
  if (!e.async) {
    put_head(out, "X", e, e.begin_ns);
    fmt::format_to(out, R"(,"dur":{:.3f})", microseconds(e.end_ns - e.begin_ns));
    put_arguments(out, e);
    return;
  }
  put_head(out, "b", e, e.begin_ns);
  fmt::format_to(out, R"(,"id":{})", number);
  put_arguments(out, e);
  fmt::format_to(out, ",\n");
  put_head(out, "e", e, e.end_ns);
  fmt::format_to(out, R"(,"id":{}}})", number);
}

}  // namespace

struct Trace::State {
  State(std::string file_path, size_t most) : path(std::move(file_path)), most_events(most) {}

  const std::string path;
  const size_t most_events;
  const Clock::time_point start = Clock::now();
  std::mutex mutex;  // guards all below
  Fd file;           // null once closed
  std::deque<Event> events;
  std::map<pid_t, std::string> thread_names;
  uint64_t dropped = 0;

  int64_t since_start(Clock::time_point at) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at - start).count();
  }

  void add(const Event& event) {
    const std::lock_guard lock(mutex);
    if (!file) return;
    if (events.size() < most_events)
      events.push_back(event);
    else
      ++dropped;
  }

  void write() {
    constexpr size_t kBlock = 1u << 20;
    std::string text;
    const auto flush = [&](size_t at_least) {
      if (text.size() < at_least) return;
      write_all(file, text, path);
      text.clear();
    };
    text = fmt::format(R"({{"displayTimeUnit":"ms","otherData":{{"dropped_events":{}}},"traceEvents":[)",
                       dropped);
    const char* separator = "\n";
    for (const auto& [thread, name] : thread_names) {
      text +=
          separator +
          Json{{"ph", "M"}, {"name", "thread_name"}, {"pid", 1}, {"tid", thread}, {"args", {{"name", name}}}}
              .dump(-1, ' ', false, Json::error_handler_t::replace);
      separator = ",\n";
    }
    for (size_t i = 0; i < events.size(); ++i) {
      text += separator;
      put_event(std::back_inserter(text), events[i], i);
      separator = ",\n";
      flush(kBlock);
    }
    text += "\n]}\n";
    flush(0);
  }
};

Trace::Trace(const std::filesystem::path& path, size_t most_events)
    : state_(std::make_unique<State>(path.string(), most_events)) {
  state_->file = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!state_->file) fail_errno(errno, state_->path + ": cannot create the trace");
}

Trace::~Trace() {
  try {
    close();
  } catch (const std::exception& e) {
    std::fputs(fmt::format("moeflux: {}\n", e.what()).c_str(), stderr);
  }
}

void Trace::close() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->file) return;
  struct Closed {  // whether the writing succeeds or not
    State& state;
    ~Closed() {
      state.file = Fd();
      state.events.clear();
    }
  } const closed{*state_};
  state_->write();
}

void Trace::span(const char* category, const char* name, Clock::time_point begin, Clock::time_point end,
                 int64_t layer, int64_t expert) {
  state_->add({category, name, state_->since_start(begin), state_->since_start(end), layer, expert, 0,
               ::gettid(), false});
}

void Trace::async_span(const char* category, const char* name, Clock::time_point begin, Clock::time_point end,
                       int64_t layer, int64_t expert, uint64_t bytes) {
  state_->add({category, name, state_->since_start(begin), state_->since_start(end), layer, expert, bytes,
               ::gettid(), true});
}

void Trace::name_thread(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  state_->thread_names[::gettid()] = name;
}

}  // namespace moeflux
