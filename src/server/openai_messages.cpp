#include "server/openai_messages.h"

#include <algorithm>

namespace moeflux {
namespace {

OrderedJson read_tool_calls(const RequestFields& message) {
  const OrderedJson* calls = message.array("tool_calls");
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; calls && i < calls->size(); ++i) {
    const RequestFields call((*calls)[i], message.path_of("tool_calls", i));
    if (call.string("type").value_or("function") != "function")
      refuse_field(call.path_of("type"), "only functions are called");
    const auto function = call.object("function");
    if (!function) call.missing("function");
    const std::string arguments = function->string("arguments").value_or("{}");
    OrderedJson one = {{"type", "function"},
                       {"function",
                        {{"name", function->required_string("name")},
                         {"arguments", parsed_arguments(arguments, function->path_of("arguments"))}}}};
    if (const auto id = call.string("id")) one["id"] = *id;
    out.push_back(std::move(one));
  }
  return out;
}

OrderedJson read_message(const RequestFields& message) {
  const std::string role = message.required_string("role");
  static constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  if (std::ranges::find(kRoles, role) == std::end(kRoles))
    throw ApiError(400,
                   fmt::format("'{}' is \"{}\", want system, developer, user, assistant or tool",
                               message.path_of("role"), role),
                   message.path_of("role"), "invalid_value");
  OrderedJson out = {{"role", role}, {"content", ""}};
  const bool assistant = role == "assistant";
  if (const OrderedJson* content = message.find("content")) {
    out["content"] = assistant ? text_of_content(*content, message.path_of("content"), {"text", "refusal"})
                               : text_of_content(*content, message.path_of("content"), {"text"});
  } else if (!assistant) {
    message.missing("content");
  }
  if (const auto name = message.string("name")) out["name"] = *name;
  if (role == "tool") out["tool_call_id"] = message.required_string("tool_call_id");
  if (!assistant) return out;
  if (message.has("function_call")) refuse_field(message.path_of("function_call"), "use tool_calls");
  if (message.has("audio")) refuse_field(message.path_of("audio"), "only text is supported");
  auto reasoning = message.string("reasoning_content");
  if (!reasoning) reasoning = message.string("reasoning");
  if (reasoning) out["reasoning_content"] = *reasoning;
  OrderedJson calls = read_tool_calls(message);
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  return out;
}

}  // namespace

std::string text_of_content(const OrderedJson& content, const std::string& path,
                            std::initializer_list<const char*> text_types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    throw ApiError(400, fmt::format("'{}' is neither a string nor a list of parts", path), path,
                   "invalid_type");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const RequestFields part(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = part.required_string("type");
    if (std::ranges::find(text_types, type) == text_types.end())
      throw ApiError(
          400,
          fmt::format("'{}[{}]': parts of type \"{}\" are not supported by this model, which reads text",
                      path, i, type),
          fmt::format("{}[{}]", path, i), "unsupported_value");
    text += part.required_string(type == "refusal" ? "refusal" : "text");
  }
  return text;
}

OrderedJson parsed_arguments(const std::string& text, const std::string& path) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) return OrderedJson::object();
  try {
    OrderedJson parsed = parse_ordered_json(text, path);
    if (parsed.is_object()) return parsed;
  } catch (const Error&) {
  }
  throw ApiError(400, fmt::format("'{}' is not a JSON object in a string", path), path, "invalid_value");
}

OrderedJson read_openai_messages(const RequestFields& fields) {
  const OrderedJson* messages = fields.array("messages");
  if (!messages) fields.missing("messages");
  if (messages->empty() || messages->size() > kMostMessages)
    throw ApiError(400, fmt::format("there are {} messages, want 1 to {}", messages->size(), kMostMessages),
                   "messages", "invalid_value");
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < messages->size(); ++i)
    out.push_back(read_message(RequestFields((*messages)[i], fields.path_of("messages", i))));
  return out;
}

}  // namespace moeflux
