#include "tools/answer_view.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

#include "base/terminal.h"
#include "tools/standard_streams.h"

namespace moeflux {

using Clock = std::chrono::steady_clock;
using Event = AnswerEvent::Kind;

const std::vector<std::string>& reasoning_names() {
  static const std::vector<std::string> names = {"show", "fold", "hide"};
  return names;
}

AnswerView::AnswerView(const std::optional<AnswerOptions>& options, Reasoning reasoning, bool silent)
    : reasoning_(reasoning),
      silent_(silent),
      to_terminal_(isatty(STDOUT_FILENO)),
      capable_(is_capable_terminal(STDERR_FILENO)) {
  if (options) parser_.emplace(*options);
}

std::string harmless(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // the controls from U+0080 on
      out += '?';
      ++i;
    } else if (byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t')) {
      out += '^';
      out += static_cast<char>(byte ^ 0x40);
    } else {
      out += text[i];
    }
  }
  return out;
}

void AnswerView::token(std::string_view piece) {
  ++n_tokens_;
  if (!parser_) return add({Event::Text, std::string(piece), ""});
  for (const AnswerEvent& event : parser_->feed(piece)) add(event);
}

void AnswerView::finish() {
  if (parser_)
    for (const AnswerEvent& event : parser_->finish()) add(event);
  end_thought();
  if (silent_) return;
  for (const OrderedJson& call : answer_.tool_calls) show_line(call["function"].dump());
  if (!at_line_start_) write_out("\n");
  at_line_start_ = true;
  std::fflush(stdout);
}

void AnswerView::add(const AnswerEvent& event) {
  answer_.add(event);
  if (silent_ || event.text.empty()) return;
  if (event.kind == Event::Reasoning) show_thought(event.text);
  if (event.kind != Event::Text) return;
  end_thought();
  write_out(to_terminal_ ? harmless(event.text) : event.text);
  std::fflush(stdout);
  at_line_start_ = event.text.ends_with('\n');
}

void AnswerView::show_thought(const std::string& text) {
  if (reasoning_ == Reasoning::Hide) return;
  if (!in_thought_) {
    in_thought_ = true;
    first_of_thought_ = n_tokens_;
    thought_begin_ = Clock::now();
    if (capable_) std::fputs("\033[2m", stderr);
  }
  if (reasoning_ == Reasoning::Show) std::fputs(harmless(text).c_str(), stderr);
  if (reasoning_ == Reasoning::Fold && capable_)
    fmt::print(stderr, "\r[thinking: {} tokens]", n_tokens_ - first_of_thought_ + 1);
  std::fflush(stderr);
}

void AnswerView::end_thought() {
  if (!in_thought_) return;
  in_thought_ = false;
  if (reasoning_ == Reasoning::Fold) {
    const double seconds = std::chrono::duration<double>(Clock::now() - thought_begin_).count();
    fmt::print(stderr, "{}[thought for {} tokens, {:.1f} s]", capable_ ? "\r\033[K" : "",
               n_tokens_ - first_of_thought_ + 1, seconds);
  }
  std::fputs(capable_ ? "\033[0m\n" : "\n", stderr);
  std::fflush(stderr);
}

void AnswerView::show_line(const std::string& line) {
  write_out((at_line_start_ ? "" : "\n") + line + "\n");
  at_line_start_ = true;
}

}  // namespace moeflux
