#include "base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/core.h>

#include "base/terminal.h"
#include "base/text.h"

namespace moeflux {
namespace {

using Clock = std::chrono::steady_clock;

std::string format_duration(double seconds) {
  const auto s = static_cast<uint64_t>(std::clamp(seconds, 0.0, 359999.0));
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

Progress::Progress(std::string what, uint64_t total, Unit unit, ProgressSink sink)
    : what_(std::move(what)),
      total_(std::max<uint64_t>(total, 1)),
      unit_(unit),
      sink_(std::move(sink)),
      terminal_(!sink_ && is_capable_terminal(STDERR_FILENO)),
      start_(Clock::now()),
      last_draw_(start_) {}

Progress::~Progress() {
  if (sink_) sink_({what_, done_, total_, unit_, true});
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::add(uint64_t n) {
  const uint64_t done = done_ += n;
  if (!sink_ && !terminal_) return;
  const auto now = Clock::now();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || now - last_draw_ < std::chrono::milliseconds(100)) return;
  if (terminal_ && now - start_ < std::chrono::seconds(1)) return;
  last_draw_ = now;
  sink_ ? sink_({what_, done, total_, unit_, false}) : draw(now, done);
}

void Progress::draw(Clock::time_point now, uint64_t done) {
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
  const double rate = static_cast<double>(done) / seconds;
  const int columns = terminal_columns(STDERR_FILENO);
  const auto amount = [&](uint64_t n) {
    return unit_ == Unit::Bytes ? format_bytes(n) : fmt::format("{} tokens", n);
  };
  const std::string text =
      fmt::format(" {:3.0f}%  {} of {}  {}/s  {} left", 100 * share, amount(done), amount(total_),
                  amount(static_cast<uint64_t>(rate)),
                  format_duration((static_cast<double>(total_ - std::min(done, total_))) / rate));
  const int room = std::clamp(columns - static_cast<int>(what_.size() + text.size()) - 4, 0, 40);
  const int full = static_cast<int>(share * room);
  const std::string bar = room ? fmt::format(" [{}{}]", std::string(static_cast<size_t>(full), '#'),
                                             std::string(static_cast<size_t>(room - full), ' '))
                               : "";
  std::fputs(fmt::format("\r{}{}{}\033[K", what_, bar, text).c_str(), stderr);
  std::fflush(stderr);
  shown_ = true;
}

}  // namespace moeflux
