#include "server/openai_responses.h"

#include <algorithm>
#include <ctime>

#include "server/json_text.h"
#include "server/openai_response_items.h"

namespace moeflux {
namespace {

constexpr uint64_t kMostResponseLogprobs = 20;

// -- requests

void read_logprobs(const RequestFields& fields, ChatRequest& request) {
  const OrderedJson* include = fields.array("include");
  const auto top = fields.count("top_logprobs", 0, kMostResponseLogprobs);
  if (include && std::ranges::find(*include, OrderedJson("message.output_text.logprobs")) != include->end())
    request.logprobs = top.value_or(0);
}

OrderedJson or_null(const RequestFields& fields, const char* key) {
  const OrderedJson* value = fields.find(key);
  return value ? *value : OrderedJson();
}

OrderedJson frame_of(const RequestFields& fields, const OpenAiResponse& out) {
  const SamplerOptions& sampler = out.request.settings.sampler;
  OrderedJson reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  if (const auto given = fields.object("reasoning")) reasoning["effort"] = or_null(*given, "effort");
  OrderedJson format = {{"type", "text"}};
  if (const auto text = fields.object("text"); text && text->has("format")) format = *text->find("format");
  const OrderedJson* tools = fields.find("tools");
  const OrderedJson* choice = fields.find("tool_choice");
  const OrderedJson* metadata = fields.find("metadata");
  return {{"instructions", or_null(fields, "instructions")},
          {"metadata", metadata ? *metadata : OrderedJson::object()},
          {"parallel_tool_calls", out.request.tool_choice.parallel},
          {"temperature", sampler.temperature},
          {"top_p", sampler.top_p},
          {"tool_choice", choice ? *choice : OrderedJson("auto")},
          {"tools", tools ? *tools : OrderedJson::array()},
          {"max_output_tokens", or_null(fields, "max_output_tokens")},
          {"previous_response_id", or_null(fields, "previous_response_id")},
          {"reasoning", reasoning},
          {"store", out.store},
          {"text", {{"format", format}}},
          {"truncation", "disabled"}};
}

void refuse_what_is_not_done(const RequestFields& fields) {
  refuse_unsupported(fields, {"prompt", "context_management", "moderation", "conversation"});
  if (fields.flag("background").value_or(false)) refuse_field("background");
  if (const auto how = fields.string("truncation"); how && *how != "disabled")
    refuse_field("truncation", "conversations that are too long are refused, not shortened");
}

// -- answers

OrderedJson usage_json(const AnswerUsage& u) {
  return {{"input_tokens", u.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", u.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", u.new_tokens},
          {"output_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}},
          {"total_tokens", u.prompt_tokens + u.new_tokens}};
}

// Builds the list of output items, and says every change of it as an event where the answer is streamed.
class ResponseWriter : public AnswerWriter {
 public:
  ResponseWriter(std::shared_ptr<HttpExchange> exchange, const ModelInfo& model,
                 const OpenAiResponse& request, ResponseStore& store)
      : exchange_(std::move(exchange)),
        store_(store),
        messages_(request.messages),
        input_(request.input),
        streams_(request.stream),
        keeps_(request.store),
        suffix_(exchange_->id().substr(4)) {
    response_ = {{"id", "resp_" + suffix_},
                 {"object", "response"},
                 {"created_at", std::time(nullptr)},
                 {"status", "in_progress"},
                 {"model", model.id},
                 {"output", OrderedJson::array()},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"usage", nullptr}};
    response_.update(request.frame);
  }

  bool streams() const override { return streams_; }

  void begin(const AnswerUsage&) override {
    if (!streams_) return;
    exchange_->begin_stream(sse_head());
    send("response.created", {{"response", response_}});
    send("response.in_progress", {{"response", response_}});
  }

  void add(size_t, const AnswerEvent& event, const TokenLogprobs& logprobs) override {
    using Kind = AnswerEvent::Kind;
    switch (event.kind) {
      case Kind::Text:
        if (!event.text.empty() || !logprobs.empty()) add_text(event.text, logprobs);
        return;
      case Kind::Reasoning:
        if (!event.text.empty()) add_reasoning(event.text);
        return;
      case Kind::CallBegin:
        close();
        return open({{"type", "function_call"},
                     {"id", item_id("fc_")},
                     {"call_id", event.id.empty() ? new_call_id() : event.id},
                     {"name", event.text},
                     {"arguments", ""},
                     {"status", "in_progress"}});
      case Kind::CallArguments:
        item_["arguments"].get_ref<std::string&>() += event.text;
        return send("response.function_call_arguments.delta", with_place({{"delta", event.text}}));
      case Kind::CallEnd:
        return close();
    }
  }

  void end_choice(size_t, const ChoiceEnd& end) override {
    end_ = end;
    close();
  }

  void end(const AnswerUsage& usage) override {
    const bool cut = end_.finish == FinishReason::Length;
    response_["status"] = cut ? "incomplete" : "completed";
    if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["output"] = output_;
    response_["usage"] = usage_json(usage);
    if (keeps_) keep();
    if (!streams_) return exchange_->reply({.body = json_text(response_) + "\n"});
    send(cut ? "response.incomplete" : "response.completed", {{"response", response_}});
    exchange_->end();
  }

  void fail(const ApiError& error) override {
    if (!streams_) return exchange_->reply(error_response(error, ApiStyle::OpenAi, exchange_->id()));
    // The event's own fields lie flat; the error object makes clients throw.
    OrderedJson event = {{"code", error.code.empty() ? OrderedJson() : OrderedJson(error.code)},
                         {"message", error.what()},
                         {"param", nullptr}};
    event.update(error_json(error, ApiStyle::OpenAi, exchange_->id()));
    exchange_->close_after();
    send("error", std::move(event));
    exchange_->end();
  }

 private:
  void send(const std::string& type, OrderedJson fields) {
    if (!streams_) return;
    OrderedJson event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    exchange_->write(sse_event(event, type));
  }

  std::string item_id(const char* prefix) const {
    return fmt::format("{}{}{}", prefix, suffix_, output_.size());
  }

  OrderedJson with_place(OrderedJson fields) const {
    OrderedJson out = {{"item_id", item_["id"]}, {"output_index", output_.size()}};
    out.update(fields);
    return out;
  }

  OrderedJson in_part(OrderedJson fields) const {
    OrderedJson out = with_place({{"content_index", 0}});
    out.update(fields);
    return out;
  }

  bool is_open(const char* type) const { return !item_.is_null() && item_["type"] == type; }

  void open(OrderedJson item) {
    item_ = std::move(item);
    send("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
  }

  void add_text(const std::string& text, const TokenLogprobs& logprobs) {
    if (!is_open("message")) {
      close();
      open({{"type", "message"},
            {"id", item_id("msg_")},
            {"status", "in_progress"},
            {"role", "assistant"},
            {"content", OrderedJson::array()}});
      part_ = {{"type", "output_text"},
               {"text", ""},
               {"annotations", OrderedJson::array()},
               {"logprobs", OrderedJson::array()}};
      send("response.content_part.added", in_part({{"part", part_}}));
    }
    const OrderedJson entries = chat_logprobs(logprobs);
    part_["text"] = part_["text"].get<std::string>() + text;
    for (const OrderedJson& entry : entries) part_["logprobs"].push_back(entry);
    send("response.output_text.delta", in_part({{"delta", text}, {"logprobs", entries}}));
  }

  void add_reasoning(const std::string& text) {
    if (!is_open("reasoning")) {
      close();
      open({{"type", "reasoning"},
            {"id", item_id("rs_")},
            {"summary", OrderedJson::array()},
            {"content", OrderedJson::array()}});
      part_ = {{"type", "reasoning_text"}, {"text", ""}};
      send("response.content_part.added", in_part({{"part", part_}}));
    }
    part_["text"] = part_["text"].get<std::string>() + text;
    send("response.reasoning_text.delta", in_part({{"delta", text}}));
  }

  void close() {
    if (item_.is_null()) return;
    if (is_open("function_call")) {
      item_["status"] = "completed";
      send("response.function_call_arguments.done",
           with_place({{"name", item_["name"]}, {"arguments", item_["arguments"]}}));
    } else {
      const bool text = is_open("message");
      OrderedJson done = {{"text", part_["text"]}};
      if (text) done["logprobs"] = part_["logprobs"];
      send(text ? "response.output_text.done" : "response.reasoning_text.done", in_part(done));
      send("response.content_part.done", in_part({{"part", part_}}));
      item_["content"].push_back(part_);
      if (text) item_["status"] = end_.finish == FinishReason::Length ? "incomplete" : "completed";
    }
    send("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(std::exchange(item_, OrderedJson()));
  }

  void keep() {
    OrderedJson messages = messages_;
    for (const OrderedJson& item : output_) append_item(RequestFields(item, "output"), messages);
    store_.keep(response_["id"], {response_, input_, messages});
  }

  const std::shared_ptr<HttpExchange> exchange_;
  ResponseStore& store_;
  const OrderedJson messages_, input_;
  const bool streams_, keeps_;
  const std::string suffix_;
  OrderedJson response_;
  OrderedJson output_ = OrderedJson::array();
  OrderedJson item_, part_;  // that have begun; null: none
  ChoiceEnd end_;
  uint64_t sequence_ = 0;
};

}  // namespace

OpenAiResponse parse_openai_response(const OrderedJson& body, const TextModel& model, ResponseStore& store) {
  const RequestFields fields(body);
  OpenAiResponse out;
  ChatRequest& request = out.request;
  refuse_what_is_not_done(fields);
  out.messages = OrderedJson::array();
  if (const auto id = fields.string("previous_response_id")) {
    const auto previous = store.find(*id);
    if (!previous)
      throw ApiError(400, fmt::format("there is no response '{}' (any more)", *id), "previous_response_id",
                     "previous_response_not_found");
    out.messages = previous->messages;
  }
  out.input = input_items(fields);
  for (size_t i = 0; i < out.input.size(); ++i)
    append_item(RequestFields(out.input[i], fields.path_of("input", i)), out.messages);
  request.messages = out.messages;
  if (const auto instructions = fields.string("instructions"))
    request.messages.insert(request.messages.begin(),
                            OrderedJson{{"role", "system"}, {"content", *instructions}});
  request.settings = default_settings(model);
  read_sampling(fields, request.settings);
  request.settings.max_tokens = fields.count("max_output_tokens", 1, UINT32_MAX);
  read_logprobs(fields, request);
  request.tools = read_openai_tools(fields, true);
  request.tool_choice = read_openai_tool_choice(fields);
  check_tools(request, "tools");
  if (const auto text = fields.object("text"))
    if (const auto format = text->object("format")) request.form = read_answer_form(*format, "text.format");
  if (const auto reasoning = fields.object("reasoning"))
    if (const auto effort = reasoning->string("effort")) set_reasoning_effort(request, *effort);
  read_template_variables(fields, "chat_template_kwargs", request);
  out.stream = fields.flag("stream").value_or(false);
  out.store = fields.flag("store").value_or(true);
  out.frame = frame_of(fields, out);
  return out;
}

std::unique_ptr<AnswerWriter> openai_response_writer(std::shared_ptr<HttpExchange> exchange,
                                                     const ModelInfo& model, const OpenAiResponse& request,
                                                     ResponseStore& store) {
  return std::make_unique<ResponseWriter>(std::move(exchange), model, request, store);
}

}  // namespace moeflux
