#include "server/openai_response_items.h"

#include "server/openai_messages.h"

namespace moeflux {
namespace {

OrderedJson& assistant_turn(OrderedJson& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  return messages.back();
}

void append(OrderedJson& message, const char* key, const std::string& text) {
  message[key] = message.value(key, "") + text;
}

void append_message(const RequestFields& item, OrderedJson& messages) {
  const std::string role = item.required_string("role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer")
    item.wrong("role", "user, assistant, system or developer");
  const OrderedJson* content = item.find("content");
  if (!content) item.missing("content");
  const std::string text =
      text_of_content(*content, item.path_of("content"), {"input_text", "output_text", "text", "refusal"});
  if (role == "assistant")
    append(assistant_turn(messages), "content", text);
  else
    messages.push_back({{"role", role}, {"content", text}});
}

void append_reasoning(const RequestFields& item, OrderedJson& messages) {
  std::string text;
  for (const char* key : {"content", "summary"}) {
    const OrderedJson* parts = item.array(key);
    if (parts && text.empty())
      text = text_of_content(*parts, item.path_of(key), {"reasoning_text", "summary_text"});
  }
  if (!text.empty()) append(assistant_turn(messages), "reasoning_content", text);
}

void append_call(const RequestFields& item, OrderedJson& messages) {
  OrderedJson& message = assistant_turn(messages);
  if (!message.contains("tool_calls")) message["tool_calls"] = OrderedJson::array();
  message["tool_calls"].push_back({{"id", item.required_string("call_id")},
                                   {"type", "function"},
                                   {"function",
                                    {{"name", item.required_string("name")},
                                     {"arguments", parsed_arguments(item.string("arguments").value_or("{}"),
                                                                    item.path_of("arguments"))}}}});
}

void append_result(const RequestFields& item, OrderedJson& messages) {
  const OrderedJson* output = item.find("output");
  if (!output) item.missing("output");
  messages.push_back(
      {{"role", "tool"},
       {"content", text_of_content(*output, item.path_of("output"), {"input_text", "output_text", "text"})},
       {"tool_call_id", item.required_string("call_id")}});
}

}  // namespace

void append_item(const RequestFields& item, OrderedJson& messages) {
  const std::string type = item.string("type").value_or("message");
  if (type == "message") return append_message(item, messages);
  if (type == "reasoning") return append_reasoning(item, messages);
  if (type == "function_call") return append_call(item, messages);
  if (type == "function_call_output") return append_result(item, messages);
  throw ApiError(
      400,
      fmt::format("'{}': items of type \"{}\" are not supported by this server", item.path_of("type"), type),
      item.path_of("type"), "unsupported_value");
}

OrderedJson input_items(const RequestFields& fields) {
  const OrderedJson* input = fields.find("input");
  if (!input) fields.missing("input");
  if (input->is_string())
    return OrderedJson::array(
        {{{"type", "message"},
          {"role", "user"},
          {"content", OrderedJson::array({{{"type", "input_text"}, {"text", input->get<std::string>()}}})}}});
  if (!input->is_array() || input->empty() || input->size() > kMostMessages)
    fields.wrong("input", fmt::format("a string or a list of 1 to {} items", kMostMessages));
  return *input;
}

}  // namespace moeflux
