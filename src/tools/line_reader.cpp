#include "tools/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/terminal.h"
#include "tools/standard_streams.h"

namespace moeflux {
namespace {

class PlainReader : public LineReader {
 public:
  explicit PlainReader(bool shows_prompt) : shows_prompt_(shows_prompt) {}

  Result read(const std::string& prompt) override {
    if (shows_prompt_) {
      write_out(prompt);
      std::fflush(stdout);
    }
    while (true) {
      if (const size_t at = held_.find('\n'); at != held_.npos) {
        std::string line = held_.substr(0, at);
        held_.erase(0, at + 1);
        if (line.ends_with('\r')) line.pop_back();
        return {Kind::Line, std::move(line)};
      }
      if (ended_) return held_.empty() ? Result{Kind::End} : Result{Kind::Line, std::exchange(held_, "")};
      if (!fill()) {
        held_.clear();
        return {Kind::Interrupted};
      }
    }
  }

 private:
  bool fill() {  // false where a signal came
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, -1) < 0 && errno == EINTR) return false;
    char buffer[4096];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) return false;
    if (n < 0) fail_errno(errno, "reading standard input");
    ended_ = n == 0;
    held_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  const bool shows_prompt_;
  std::string held_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<LineReader> make_line_reader(const LineReaderOptions& options) {
  if (options.interactive && is_capable_terminal(STDOUT_FILENO))
    if (auto editing = make_editing_reader(options)) return editing;
  return std::make_unique<PlainReader>(options.interactive);
}

#ifndef MOEFLUX_EDITLINE
std::unique_ptr<LineReader> make_editing_reader(const LineReaderOptions&) { return nullptr; }
#endif

}  // namespace moeflux
