// Shows an answer as it comes: its text on stdout, thoughts on stderr, dimmed where that can be.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer.h"

namespace moeflux {

enum class Reasoning {
  Show,
  Fold,  // a line that says how long it was
  Hide
};
const std::vector<std::string>& reasoning_names();  // in the order of the enumeration

// Text of whole characters without control characters: a model must not steer a terminal.
std::string harmless(std::string_view text);

class AnswerView {
 public:
  // Without options, everything is text. `silent`: only collects.
  AnswerView(const std::optional<AnswerOptions>& options, Reasoning reasoning, bool silent);
  ~AnswerView() { end_thought(); }  // a terminal is not left dim where an answer fails
  AnswerView(const AnswerView&) = delete;
  AnswerView& operator=(const AnswerView&) = delete;

  void token(std::string_view piece);  // the text that a token has brought
  void finish();                       // ends the last line

  const Answer& answer() const { return answer_; }

 private:
  void add(const AnswerEvent& event);
  void show_thought(const std::string& text);
  void end_thought();
  void show_line(const std::string& line);

  std::optional<AnswerParser> parser_;
  const Reasoning reasoning_;
  const bool silent_;
  const bool to_terminal_;
  const bool capable_;  // stderr is a terminal that dims and redraws
  Answer answer_;
  bool in_thought_ = false, at_line_start_ = true;
  size_t n_tokens_ = 0, first_of_thought_ = 0;
  std::chrono::steady_clock::time_point thought_begin_;
};

}  // namespace moeflux
