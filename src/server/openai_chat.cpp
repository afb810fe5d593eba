#include "server/openai_chat.h"

#include <sys/random.h>

#include <array>
#include <cmath>
#include <ctime>

#include "server/json_text.h"
#include "server/openai_messages.h"
#include "text/utf8.h"

namespace moeflux {
namespace {

constexpr uint64_t kMostChoices = 128, kMostLogprobs = 20;

std::string chat_id(const HttpExchange& exchange) { return "chatcmpl-" + exchange.id().substr(4); }

OrderedJson chunk_of(const std::string& id, int64_t created, const ModelInfo& model) {
  return {{"id", id},
          {"object", "chat.completion.chunk"},
          {"created", created},
          {"model", model.id},
          {"system_fingerprint", model.fingerprint}};
}

OrderedJson tool_call_json(const std::string& id, const std::string& name, const std::string& arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

class ChatStream : public AnswerWriter {
 public:
  ChatStream(std::shared_ptr<HttpExchange> exchange, const ModelInfo& model, const OpenAiStreaming& streaming,
             size_t n)
      : exchange_(std::move(exchange)),
        streaming_(streaming),
        frame_(chunk_of(chat_id(*exchange_), std::time(nullptr), model)),
        n_calls_(n) {}

  bool streams() const override { return true; }

  void begin(const AnswerUsage&) override {
    exchange_->begin_stream(sse_head());
    // One per choice, in order, before anything else of it: clients count on it.
    for (size_t i = 0; i < n_calls_.size(); ++i) send(i, {{"role", "assistant"}, {"content", ""}});
  }

  void progress(size_t done, size_t total) override {
    if (!streaming_.progress) return;
    OrderedJson chunk = chunk_with(0, OrderedJson::object(), nullptr, nullptr);
    chunk["prompt_progress"] = {{"total", total}, {"processed", done}};
    exchange_->write(sse_event(chunk));
  }

  void add(size_t choice, const AnswerEvent& event, const TokenLogprobs& logprobs) override {
    using Kind = AnswerEvent::Kind;
    OrderedJson entries = nullptr;
    if (!logprobs.empty()) entries = {{"content", chat_logprobs(logprobs)}, {"refusal", nullptr}};
    switch (event.kind) {
      case Kind::Text:
        if (event.text.empty() && logprobs.empty()) return;
        return send(choice, {{"content", event.text}}, std::move(entries));
      case Kind::Reasoning:
        if (event.text.empty()) return;
        return send(choice, {{"reasoning_content", event.text}});
      case Kind::CallBegin: {
        OrderedJson call = {{"index", n_calls_[choice]++}};
        call.update(tool_call_json(event.id.empty() ? new_call_id() : event.id, event.text, ""));
        return send(choice, {{"tool_calls", OrderedJson::array({call})}});
      }
      case Kind::CallArguments: {
        const OrderedJson call = {{"index", n_calls_[choice] - 1}, {"function", {{"arguments", event.text}}}};
        return send(choice, {{"tool_calls", OrderedJson::array({call})}});
      }
      case Kind::CallEnd:
        return;
    }
  }

  void end_choice(size_t choice, const ChoiceEnd& end) override {
    send(choice, OrderedJson::object(), nullptr, openai_finish_reason(end));
  }

  void end(const AnswerUsage& usage) override {
    if (streaming_.include_usage || streaming_.timings) {
      OrderedJson chunk = frame_;
      chunk["choices"] = OrderedJson::array();
      if (streaming_.include_usage) chunk["usage"] = openai_usage(usage);
      if (streaming_.timings) chunk["timings"] = openai_timings(usage);
      exchange_->write(sse_event(chunk));
    }
    exchange_->write("data: [DONE]\n\n");
    exchange_->end();
  }

  void fail(const ApiError& error) override {
    exchange_->close_after();
    exchange_->write(sse_event(error_json(error, ApiStyle::OpenAi, exchange_->id())));
    exchange_->end();
  }

 private:
  OrderedJson chunk_with(size_t choice, OrderedJson delta, OrderedJson logprobs, OrderedJson finish) const {
    OrderedJson chunk = frame_;
    chunk["choices"] = OrderedJson::array({{{"index", choice},
                                            {"delta", std::move(delta)},
                                            {"logprobs", std::move(logprobs)},
                                            {"finish_reason", std::move(finish)}}});
    if (streaming_.include_usage) chunk["usage"] = nullptr;
    return chunk;
  }
  void send(size_t choice, OrderedJson delta, OrderedJson logprobs = nullptr, OrderedJson finish = nullptr) {
    exchange_->write(sse_event(chunk_with(choice, std::move(delta), std::move(logprobs), std::move(finish))));
  }

  const std::shared_ptr<HttpExchange> exchange_;
  const OpenAiStreaming streaming_;
  const OrderedJson frame_;
  std::vector<size_t> n_calls_;  // by choice
};

class ChatObject : public AnswerWriter {
 public:
  ChatObject(std::shared_ptr<HttpExchange> exchange, const ModelInfo& model, const OpenAiStreaming& streaming,
             size_t n)
      : exchange_(std::move(exchange)), model_(model), streaming_(streaming), choices_(n) {}

  void begin(const AnswerUsage&) override {}

  void add(size_t choice, const AnswerEvent& event, const TokenLogprobs& logprobs) override {
    Choice& c = choices_[choice];
    AnswerEvent with_id = event;
    if (event.kind == AnswerEvent::Kind::CallBegin && event.id.empty()) with_id.id = new_call_id();
    c.answer.add(with_id);
    c.logprobs.insert(c.logprobs.end(), logprobs.begin(), logprobs.end());
  }

  void end_choice(size_t choice, const ChoiceEnd& end) override { choices_[choice].end = end; }

  void end(const AnswerUsage& usage) override {
    OrderedJson body = {{"id", chat_id(*exchange_)},
                        {"object", "chat.completion"},
                        {"created", std::time(nullptr)},
                        {"model", model_.id},
                        {"system_fingerprint", model_.fingerprint},
                        {"choices", OrderedJson::array()}};
    for (size_t i = 0; i < choices_.size(); ++i) body["choices"].push_back(choice_json(i));
    body["usage"] = openai_usage(usage);
    if (streaming_.timings) body["timings"] = openai_timings(usage);
    exchange_->reply({.body = json_text(body) + "\n"});
  }

  void fail(const ApiError& error) override {
    exchange_->reply(error_response(error, ApiStyle::OpenAi, exchange_->id()));
  }

 private:
  struct Choice {
    Answer answer;
    TokenLogprobs logprobs;
    ChoiceEnd end;
  };

  OrderedJson choice_json(size_t index) const {
    const Choice& c = choices_[index];
    const bool only_calls = c.answer.text.empty() && !c.answer.tool_calls.empty();
    OrderedJson message = {{"role", "assistant"},
                           {"content", only_calls ? OrderedJson() : OrderedJson(c.answer.text)},
                           {"refusal", nullptr}};
    if (!c.answer.reasoning.empty()) message["reasoning_content"] = c.answer.reasoning;
    if (!c.answer.tool_calls.empty()) message["tool_calls"] = c.answer.tool_calls;
    OrderedJson logprobs = nullptr;
    if (!c.logprobs.empty()) logprobs = {{"content", chat_logprobs(c.logprobs)}, {"refusal", nullptr}};
    return {{"index", index},
            {"message", message},
            {"logprobs", logprobs},
            {"finish_reason", openai_finish_reason(c.end)}};
  }

  const std::shared_ptr<HttpExchange> exchange_;
  const ModelInfo& model_;
  const OpenAiStreaming streaming_;
  std::vector<Choice> choices_;
};

}  // namespace

std::string new_call_id() {
  std::array<uint64_t, 2> bits{};
  if (getrandom(bits.data(), sizeof bits, 0) != sizeof bits) fail_errno(errno, "getrandom");
  return fmt::format("call_{:016x}{:08x}", bits[0], static_cast<uint32_t>(bits[1]));
}

HttpResponse sse_head() {
  return {.content_type = "text/event-stream",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

const char* openai_finish_reason(const ChoiceEnd& end) {
  if (end.has_calls && end.finish != FinishReason::Length) return "tool_calls";
  return end.finish == FinishReason::Length ? "length" : "stop";
}

double finite_logprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999; }

OrderedJson chat_logprobs(const TokenLogprobs& logprobs) {
  const auto entry = [](const TokenLogprob::One& one) {
    OrderedJson bytes = OrderedJson::array();
    for (const char c : one.bytes) bytes.push_back(static_cast<unsigned char>(c));
    return OrderedJson{
        {"token", replace_ill_formed(one.bytes)}, {"logprob", finite_logprob(one.logprob)}, {"bytes", bytes}};
  };
  OrderedJson list = OrderedJson::array();
  for (const TokenLogprob& one : logprobs) {
    OrderedJson item = entry(one.token);
    item["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob::One& other : one.top) item["top_logprobs"].push_back(entry(other));
    list.push_back(std::move(item));
  }
  return list;
}

OrderedJson openai_usage(const AnswerUsage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.new_tokens},
          {"total_tokens", u.prompt_tokens + u.new_tokens},
          {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}}};
}

OrderedJson openai_timings(const AnswerUsage& u) {
  const size_t evaluated = u.prompt_tokens - u.cached_tokens;
  return {{"cache_n", u.cached_tokens},        {"prompt_n", evaluated},
          {"prompt_ms", 1000 * u.prefill_s},   {"predicted_n", u.new_tokens},
          {"predicted_ms", 1000 * u.decode_s}, {"queue_ms", 1000 * u.queue_s}};
}

OpenAiStreaming read_openai_streaming(const RequestFields& fields) {
  OpenAiStreaming out;
  out.stream = fields.flag("stream").value_or(false);
  out.progress = fields.flag("return_progress").value_or(false);
  out.timings = fields.flag("timings_per_token").value_or(false);
  const auto options = fields.object("stream_options");
  if (options && !out.stream)
    throw ApiError(400, "'stream_options' is for answers that are streamed", "stream_options",
                   "invalid_value");
  if (options) out.include_usage = options->flag("include_usage").value_or(false);
  return out;
}

void refuse_unsupported(const RequestFields& fields, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (fields.has(name)) refuse_field(fields.path_of(name));
}

OrderedJson read_openai_tools(const RequestFields& fields, bool flat) {
  const OrderedJson* tools = fields.array("tools");
  if (!tools || tools->empty()) return nullptr;
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const RequestFields tool((*tools)[i], fields.path_of("tools", i));
    const std::string type = tool.required_string("type");
    if (type != "function")
      refuse_field(tool.path_of("type"), fmt::format("tools of type \"{}\" do not run here", type));
    const auto inner = flat ? std::optional(tool) : tool.object("function");
    if (!inner) tool.missing("function");
    OrderedJson function = {{"name", inner->required_string("name")}};
    if (const auto text = inner->string("description")) function["description"] = *text;
    const auto parameters = inner->object("parameters");
    function["parameters"] = parameters
                                 ? *inner->find("parameters")
                                 : OrderedJson{{"type", "object"}, {"properties", OrderedJson::object()}};
    if (inner->flag("strict").value_or(false)) function["strict"] = true;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

ToolChoice read_openai_tool_choice(const RequestFields& fields) {
  using Mode = ToolChoice::Mode;
  ToolChoice out;
  out.parallel = fields.flag("parallel_tool_calls").value_or(true);
  const OrderedJson* choice = fields.find("tool_choice");
  if (!choice) return out;
  const auto mode_of = [&](const RequestFields& holder, const char* key, const std::string& word) {
    if (word == "auto") return Mode::Auto;
    if (word == "none") return Mode::None;
    if (word == "required") return Mode::Required;
    holder.wrong(key, "none, auto, required or an object");
  };
  if (choice->is_string()) {
    out.mode = mode_of(fields, "tool_choice", choice->get<std::string>());
    return out;
  }
  const RequestFields object(*choice, fields.path_of("tool_choice"));
  const std::string type = object.required_string("type");
  if (type == "function") {
    const auto inner = object.object("function");
    out.names = {(inner ? *inner : object).required_string("name")};
    out.mode = Mode::Required;
    out.parallel = false;
    return out;
  }
  if (type != "allowed_tools")
    refuse_field(object.path_of("type"), fmt::format("there are no tools of type \"{}\"", type));
  const auto nested = object.object("allowed_tools");
  const RequestFields& holder = nested ? *nested : object;
  out.mode = mode_of(holder, "mode", holder.required_string("mode"));
  const OrderedJson* tools = holder.array("tools");
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const RequestFields tool((*tools)[i], holder.path_of("tools", i));
    const auto inner = tool.object("function");
    out.names.push_back((inner ? *inner : tool).required_string("name"));
  }
  return out;
}

OpenAiChat parse_openai_chat(const OrderedJson& body, const TextModel& model) {
  const RequestFields fields(body);
  OpenAiChat out;
  ChatRequest& request = out.request;
  refuse_unsupported(fields, {"audio", "web_search_options", "moderation", "functions", "function_call"});
  if (const OrderedJson* modalities = fields.find("modalities");
      modalities && *modalities != OrderedJson::array({"text"}))
    refuse_field("modalities", "answers are text");
  request.messages = read_openai_messages(fields);
  request.settings = default_settings(model);
  read_sampling(fields, request.settings);
  if (const auto most = fields.count("max_tokens", 1, UINT32_MAX)) request.settings.max_tokens = *most;
  if (const auto most = fields.count("max_completion_tokens", 1, UINT32_MAX))
    request.settings.max_tokens = *most;
  request.n = fields.count("n", 1, kMostChoices).value_or(1);
  const auto top = fields.count("top_logprobs", 0, kMostLogprobs);
  if (fields.flag("logprobs").value_or(false)) request.logprobs = top.value_or(0);
  if (top && *top > 0 && !request.logprobs)
    throw ApiError(400, "'top_logprobs' needs 'logprobs' to be true", "top_logprobs", "invalid_value");
  request.tools = read_openai_tools(fields, false);
  request.tool_choice = read_openai_tool_choice(fields);
  check_tools(request, "tools");
  if (const auto format = fields.object("response_format"))
    request.form = read_answer_form(*format, "response_format");
  if (const auto grammar = fields.string("grammar"))
    request.form = {.kind = AnswerForm::Kind::OfGrammar, .grammar = *grammar, .param = "grammar"};
  if (const OrderedJson* schema = fields.find("json_schema"))
    request.form = {.kind = AnswerForm::Kind::OfSchema, .schema = *schema, .param = "json_schema"};
  if (const auto effort = fields.string("reasoning_effort")) set_reasoning_effort(request, *effort);
  request.thinking_budget = fields.count("reasoning_budget_tokens", 0, UINT32_MAX);
  read_template_variables(fields, "chat_template_kwargs", request);
  request.continues = fields.flag("continue_final_message").value_or(false);
  if (request.continues && request.messages.back()["role"] != "assistant")
    throw ApiError(400, "'continue_final_message' needs a last message of the assistant",
                   "continue_final_message", "invalid_value");
  out.streaming = read_openai_streaming(fields);
  return out;
}

std::unique_ptr<AnswerWriter> openai_chat_writer(std::shared_ptr<HttpExchange> exchange,
                                                 const ModelInfo& model, const OpenAiStreaming& streaming,
                                                 size_t n) {
  if (streaming.stream) return std::make_unique<ChatStream>(std::move(exchange), model, streaming, n);
  return std::make_unique<ChatObject>(std::move(exchange), model, streaming, n);
}

}  // namespace moeflux
