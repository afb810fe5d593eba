// A model's answer, put together from the events that AnswerParser gives.
#pragma once

#include <string>

#include "text/answer_parser.h"

namespace moeflux {

struct Answer {
  std::string text, reasoning;
  OrderedJson tool_calls = OrderedJson::array();

  bool empty() const { return text.empty() && reasoning.empty() && tool_calls.empty(); }
  void add(const AnswerEvent& event);
  OrderedJson message() const;  // as the chat completions API has it
};

}  // namespace moeflux
