#include "text/answer.h"

#include <fmt/core.h>

namespace moeflux {

using Event = AnswerEvent::Kind;

void Answer::add(const AnswerEvent& event) {
  switch (event.kind) {
    case Event::Text:
      text += event.text;
      break;
    case Event::Reasoning:
      reasoning += event.text;
      break;
    case Event::CallBegin:
      tool_calls.push_back({{"id", event.id.empty() ? fmt::format("call_{}", tool_calls.size()) : event.id},
                            {"type", "function"},
                            {"function", {{"name", event.text}, {"arguments", ""}}}});
      break;
    case Event::CallArguments:
      tool_calls.back()["function"]["arguments"].get_ref<std::string&>() += event.text;
      break;
    case Event::CallEnd:
      break;
  }
}

OrderedJson Answer::message() const {
  OrderedJson message = {{"role", "assistant"}, {"content", text}};
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (!tool_calls.empty()) message["tool_calls"] = tool_calls;
  return message;
}

}  // namespace moeflux
