#include "server/anthropic_messages.h"

#include "server/json_text.h"
#include "server/openai_chat.h"
#include "server/openai_messages.h"

namespace moeflux {
namespace {

// -- requests

[[noreturn]] void refuse_block(const std::string& path, const std::string& type) {
  throw ApiError(
      400,
      fmt::format("{}: blocks of type \"{}\" are not supported by this model, which reads text", path, type),
      path, "unsupported_value");
}

// Appends to the last message where it is of the same role, since turns of one speaker are one turn.
OrderedJson& turn(OrderedJson& messages, const std::string& role) {
  if (messages.empty() || messages.back()["role"] != role)
    messages.push_back({{"role", role}, {"content", ""}});
  return messages.back();
}

void append_text(OrderedJson& message, const char* key, const std::string& text, bool new_turn) {
  std::string all = message.value(key, "");
  if (new_turn && !all.empty()) all += "\n";
  message[key] = all + text;
}

void read_tool_result(const RequestFields& block, OrderedJson& messages) {
  std::string text;
  if (const OrderedJson* content = block.find("content"))
    text = text_of_content(*content, block.path_of("content"), {"text"});
  if (block.flag("is_error").value_or(false)) text = "Error: " + text;
  messages.push_back(
      {{"role", "tool"}, {"content", text}, {"tool_call_id", block.required_string("tool_use_id")}});
}

void read_user_block(const RequestFields& block, OrderedJson& messages, bool first) {
  const std::string type = block.required_string("type");
  if (type == "tool_result") return read_tool_result(block, messages);
  if (type != "text") refuse_block(block.path_of("type"), type);
  append_text(turn(messages, "user"), "content", block.required_string("text"), first);
}

void read_assistant_block(const RequestFields& block, OrderedJson& messages, bool first) {
  const std::string type = block.required_string("type");
  OrderedJson& message = turn(messages, "assistant");
  if (type == "text") return append_text(message, "content", block.required_string("text"), first);
  if (type == "thinking")
    return append_text(message, "reasoning_content", block.required_string("thinking"), first);
  if (type == "redacted_thinking") return;
  if (type != "tool_use") refuse_block(block.path_of("type"), type);
  const auto input = block.object("input");
  if (!message.contains("tool_calls")) message["tool_calls"] = OrderedJson::array();
  message["tool_calls"].push_back({{"id", block.required_string("id")},
                                   {"type", "function"},
                                   {"function",
                                    {{"name", block.required_string("name")},
                                     {"arguments", input ? *block.find("input") : OrderedJson::object()}}}});
}

void read_message(const RequestFields& fields, OrderedJson& messages) {
  const std::string role = fields.required_string("role");
  if (role != "user" && role != "assistant" && role != "system") fields.wrong("role", "user or assistant");
  const OrderedJson* content = fields.find("content");
  if (!content) fields.missing("content");
  if (role == "system") {
    append_text(turn(messages, "system"), "content",
                text_of_content(*content, fields.path_of("content"), {"text"}), true);
    return;
  }
  if (content->is_string()) {
    append_text(turn(messages, role), "content", content->get<std::string>(), true);
    return;
  }
  if (!content->is_array()) fields.wrong("content", "a string or a list of blocks");
  for (size_t i = 0; i < content->size(); ++i) {
    const RequestFields block((*content)[i], fields.path_of("content", i));
    role == "user" ? read_user_block(block, messages, i == 0) : read_assistant_block(block, messages, i == 0);
  }
}

void read_messages(const RequestFields& fields, ChatRequest& request) {
  OrderedJson& messages = request.messages;
  if (const OrderedJson* system = fields.find("system"))
    messages.push_back({{"role", "system"}, {"content", text_of_content(*system, "system", {"text"})}});
  const OrderedJson* list = fields.array("messages");
  if (!list) fields.missing("messages");
  if (list->empty() || list->size() > kMostMessages)
    throw ApiError(400, fmt::format("messages: there are {}, want 1 to {}", list->size(), kMostMessages),
                   "messages", "invalid_value");
  for (size_t i = 0; i < list->size(); ++i)
    read_message(RequestFields((*list)[i], fields.path_of("messages", i)), messages);
  const OrderedJson& last = messages.back();
  request.continues = last["role"] == "assistant" && !last.contains("tool_calls");
}

void read_tools(const RequestFields& fields, ChatRequest& request) {
  const OrderedJson* tools = fields.array("tools");
  if (tools && !tools->empty()) request.tools = OrderedJson::array();
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const RequestFields tool((*tools)[i], fields.path_of("tools", i));
    if (const auto type = tool.string("type"); type && *type != "custom")
      refuse_field(tool.path_of("type"), fmt::format("tools of type \"{}\" do not run here", *type));
    OrderedJson function = {{"name", tool.required_string("name")}};
    if (const auto text = tool.string("description")) function["description"] = *text;
    if (!tool.object("input_schema")) tool.missing("input_schema");
    function["parameters"] = *tool.find("input_schema");
    if (tool.flag("strict").value_or(false)) function["strict"] = true;
    request.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (const auto choice = fields.object("tool_choice")) {
    using Mode = ToolChoice::Mode;
    const std::string type = choice->required_string("type");
    if (type == "tool") request.tool_choice.names = {choice->required_string("name")};
    if (type != "auto" && type != "any" && type != "none" && type != "tool")
      choice->wrong("type", "auto, any, none or tool");
    request.tool_choice.mode = type == "auto" ? Mode::Auto : type == "none" ? Mode::None : Mode::Required;
    request.tool_choice.parallel =
        type != "tool" && !choice->flag("disable_parallel_tool_use").value_or(false);
  }
  check_tools(request, "tools");
}

void read_thinking(const RequestFields& fields, ChatRequest& request) {
  const auto thinking = fields.object("thinking");
  if (!thinking) return;
  const std::string type = thinking->required_string("type");
  if (type != "enabled" && type != "adaptive" && type != "disabled" && type != "between_tools")
    thinking->wrong("type", "enabled, adaptive, between_tools or disabled");
  set_thinking(request, type != "disabled");
  if (type == "enabled") request.thinking_budget = thinking->count("budget_tokens", 1, UINT32_MAX);
}

// -- answers

OrderedJson usage_json(const AnswerUsage& u) {
  return {{"input_tokens", u.prompt_tokens - u.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", u.cached_tokens},
          {"output_tokens", u.new_tokens}};
}

const char* stop_reason(const ChoiceEnd& end) {
  if (end.finish == FinishReason::Length)
    return end.context_full ? "model_context_window_exceeded" : "max_tokens";
  if (end.has_calls) return "tool_use";
  return end.stop_string ? "stop_sequence" : "end_turn";
}

OrderedJson message_json(const HttpExchange& exchange, const ModelInfo& model) {
  return {{"id", "msg_" + exchange.id().substr(4)},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model.id},
          {"content", OrderedJson::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr}};
}

std::string tool_use_id(const AnswerEvent& event) {
  return event.id.empty() ? "toolu_" + new_call_id().substr(5) : event.id;
}

constexpr const char* kSignature = "moeflux";  // thoughts are taken back unsigned

class MessageStream : public AnswerWriter {
 public:
  MessageStream(std::shared_ptr<HttpExchange> exchange, const ModelInfo& model)
      : exchange_(std::move(exchange)), message_(message_json(*exchange_, model)) {}

  bool streams() const override { return true; }

  void begin(const AnswerUsage& so_far) override {
    exchange_->begin_stream(sse_head());
    message_["usage"] = usage_json(so_far);
    send({{"type", "message_start"}, {"message", message_}});
  }

  void add(size_t, const AnswerEvent& event, const TokenLogprobs&) override {
    using Kind = AnswerEvent::Kind;
    switch (event.kind) {
      case Kind::Text:
        if (event.text.empty()) return;
        open("text", {{"type", "text"}, {"text", ""}});
        return delta({{"type", "text_delta"}, {"text", event.text}});
      case Kind::Reasoning:
        if (event.text.empty()) return;
        open("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return delta({{"type", "thinking_delta"}, {"thinking", event.text}});
      case Kind::CallBegin:
        close();
        return open("tool_use", {{"type", "tool_use"},
                                 {"id", tool_use_id(event)},
                                 {"name", event.text},
                                 {"input", OrderedJson::object()}});
      case Kind::CallArguments:
        return delta({{"type", "input_json_delta"}, {"partial_json", event.text}});
      case Kind::CallEnd:
        return close();
    }
  }

  void end_choice(size_t, const ChoiceEnd& end) override {
    close();
    end_ = end;
  }

  void end(const AnswerUsage& usage) override {
    send({{"type", "message_delta"},
          {"delta",
           {{"stop_reason", stop_reason(end_)},
            {"stop_sequence", end_.stop_string ? OrderedJson(*end_.stop_string) : OrderedJson()}}},
          {"usage", usage_json(usage)}});
    send({{"type", "message_stop"}});
    exchange_->end();
  }

  void fail(const ApiError& error) override {
    exchange_->close_after();
    send(error_json(error, ApiStyle::Anthropic, exchange_->id()));
    exchange_->end();
  }

 private:
  void send(const OrderedJson& event) {
    exchange_->write(sse_event(event, event["type"].get_ref<const std::string&>()));
  }

  void open(const std::string& type, const OrderedJson& block) {
    if (open_ == type) return;
    close();
    open_ = type;
    send({{"type", "content_block_start"}, {"index", index_}, {"content_block", block}});
  }

  void close() {
    if (open_.empty()) return;
    if (open_ == "thinking") delta({{"type", "signature_delta"}, {"signature", kSignature}});
    send({{"type", "content_block_stop"}, {"index", index_++}});
    open_.clear();
  }

  void delta(const OrderedJson& what) {
    send({{"type", "content_block_delta"}, {"index", index_}, {"delta", what}});
  }

  const std::shared_ptr<HttpExchange> exchange_;
  OrderedJson message_;
  std::string open_;  // the type of the block that has begun; empty: none
  size_t index_ = 0;
  ChoiceEnd end_;
};

class MessageObject : public AnswerWriter {
 public:
  MessageObject(std::shared_ptr<HttpExchange> exchange, const ModelInfo& model)
      : exchange_(std::move(exchange)), message_(message_json(*exchange_, model)) {}

  void begin(const AnswerUsage&) override {}

  void add(size_t, const AnswerEvent& event, const TokenLogprobs&) override {
    using Kind = AnswerEvent::Kind;
    OrderedJson& content = message_["content"];
    switch (event.kind) {
      case Kind::Text:
        return append("text", "text", event.text, {{"type", "text"}, {"text", ""}});
      case Kind::Reasoning:
        return append("thinking", "thinking", event.text,
                      {{"type", "thinking"}, {"thinking", ""}, {"signature", kSignature}});
      case Kind::CallBegin:
        content.push_back({{"type", "tool_use"},
                           {"id", tool_use_id(event)},
                           {"name", event.text},
                           {"input", OrderedJson::object()}});
        return;
      case Kind::CallArguments:
        content.back()["input"] = parse_ordered_json(event.text, "the arguments");
        return;
      case Kind::CallEnd:
        return;
    }
  }

  void end_choice(size_t, const ChoiceEnd& end) override {
    message_["stop_reason"] = stop_reason(end);
    if (end.stop_string) message_["stop_sequence"] = *end.stop_string;
  }

  void end(const AnswerUsage& usage) override {
    message_["usage"] = usage_json(usage);
    exchange_->reply({.body = json_text(message_) + "\n"});
  }

  void fail(const ApiError& error) override {
    exchange_->reply(error_response(error, ApiStyle::Anthropic, exchange_->id()));
  }

 private:
  void append(const char* type, const char* key, const std::string& text, const OrderedJson& empty) {
    if (text.empty()) return;
    OrderedJson& content = message_["content"];
    if (content.empty() || content.back()["type"] != type) content.push_back(empty);
    content.back()[key] = content.back()[key].get<std::string>() + text;
  }

  const std::shared_ptr<HttpExchange> exchange_;
  OrderedJson message_;
};

}  // namespace

AnthropicMessage parse_anthropic_message(const OrderedJson& body, const TextModel& model, bool counting) {
  const RequestFields fields(body);
  AnthropicMessage out;
  ChatRequest& request = out.request;
  refuse_unsupported(fields, {"container", "mcp_servers", "context_management"});
  request.settings = default_settings(model);
  const auto most = fields.count("max_tokens", 0, UINT32_MAX);
  if (!most && !counting) fields.missing("max_tokens");
  request.settings.max_tokens = most;
  read_sampling(fields, request.settings, 1);
  for (std::string& stop : fields.strings("stop_sequences"))
    if (stop.find_first_not_of(" \t\r\n") != stop.npos) request.settings.stop.push_back(std::move(stop));
  check_stop_texts(request.settings);
  read_messages(fields, request);
  read_tools(fields, request);
  read_thinking(fields, request);
  if (const auto config = fields.object("output_config")) {
    if (const auto effort = config->string("effort"); effort && !fields.has("thinking"))
      set_reasoning_effort(request, *effort);
    if (const auto format = config->object("format"))
      request.form = read_answer_form(*format, "output_config.format");
  }
  out.stream = fields.flag("stream").value_or(false);
  return out;
}

std::unique_ptr<AnswerWriter> anthropic_writer(std::shared_ptr<HttpExchange> exchange, const ModelInfo& model,
                                               bool stream) {
  if (stream) return std::make_unique<MessageStream>(std::move(exchange), model);
  return std::make_unique<MessageObject>(std::move(exchange), model);
}

}  // namespace moeflux
