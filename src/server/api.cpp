#include "server/api.h"

#include <algorithm>

#include "server/anthropic_messages.h"
#include "server/json_text.h"
#include "server/openai_completions.h"
#include "server/openai_responses.h"
#include "text/utf8.h"

namespace moeflux {
namespace {

constexpr size_t kMostTokensAtOnce = 1 << 20;  // of /detokenize
constexpr std::string_view kComment = ": waiting\n\n";

void reply_json(HttpExchange& e, const OrderedJson& json) { e.reply({.body = json_text(json) + "\n"}); }

// The id in /v1/responses/ID, with what follows it.
std::pair<std::string, std::string> response_path(const std::string& path) {
  const std::string rest = path.substr(std::string_view("/v1/responses/").size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  return {rest.substr(0, slash), rest.substr(slash)};
}

}  // namespace

Api::Api(Engine& engine, const TextModel& text, Scheduler& scheduler, ServerMetrics& metrics, ModelInfo model,
         ApiOptions options)
    : engine_(engine),
      text_(text),
      scheduler_(scheduler),
      metrics_(metrics),
      model_(std::move(model)),
      options_(std::move(options)),
      responses_(options_.response_bytes) {}

std::span<const Api::Endpoint> Api::endpoints() {
  static constexpr Endpoint kAll[] = {
      {{"POST", "/v1/chat/completions"}, &Api::chat_completions},
      {{"POST", "/chat/completions"}, &Api::chat_completions},
      {{"POST", "/v1/chat/completions/input_tokens"}, &Api::count_chat_tokens},
      {{"POST", "/v1/completions"}, &Api::completions},
      {{"POST", "/v1/responses"}, &Api::responses},
      {{"POST", "/responses"}, &Api::responses},
      {{"POST", "/v1/responses/input_tokens"}, &Api::count_response_tokens},
      {{"GET", "/v1/responses/"}, &Api::stored_response},
      {{"DELETE", "/v1/responses/"}, &Api::delete_response},
      {{"POST", "/v1/messages"}, &Api::messages},
      {{"POST", "/v1/messages/count_tokens"}, &Api::count_message_tokens},
      {{"GET", "/v1/models"}, &Api::models},
      {{"GET", "/models"}, &Api::models},
      {{"GET", "/v1/models/"}, &Api::model},
      {{"GET", "/models/"}, &Api::model},
      {{"POST", "/tokenize"}, &Api::tokenize},
      {{"POST", "/detokenize"}, &Api::detokenize},
      {{"POST", "/apply-template"}, &Api::apply_template},
      {{"GET", "/props"}, &Api::props},
      {{"GET", "/v1/engine"}, &Api::engine},
  };
  return kAll;
}

const Api::Endpoint* Api::find(const HttpRequest& request) {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  const Endpoint* other = nullptr;
  for (const Endpoint& endpoint : endpoints()) {
    const std::string_view path = endpoint.route.path;
    const bool here = path.ends_with('/')
                          ? request.path.starts_with(path) && request.path.size() > path.size()
                          : request.path == path;
    if (here && endpoint.route.method == method) return &endpoint;
    if (here && !other) other = &endpoint;
  }
  return other;
}

const ApiRoute* Api::find_route(const HttpRequest& request) {
  const Endpoint* endpoint = find(request);
  return endpoint ? &endpoint->route : nullptr;
}

void Api::handle(const Exchange& e) {
  const ApiStyle style = style_of(e->request().path);
  const auto refuse = [&](const ApiError& error) {
    e->note("error", error.what());
    e->reply(error_response(error, style, e->id()));
  };
  const Endpoint* endpoint = find(e->request());
  check(endpoint != nullptr, "a request that was admitted has a route");
  try {
    (this->*endpoint->handler)(e);
  } catch (const ApiError& error) {
    refuse(error);
  } catch (const Error& error) {
    refuse(request_error(error));
  } catch (const std::exception& error) {  // a mistake of ours in reading the request
    refuse({500, error.what(), "", "internal_error"});
  }
}

OrderedJson Api::body_of(const Exchange& e) const {
  try {
    return parse_ordered_json(e->request().body, "the body");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "", "invalid_json");
  }
}

void Api::check_model(const OrderedJson& body) const {
  const auto name = RequestFields(body).string("model");
  if (!name || model_.answers_to(*name)) return;
  throw ApiError(404, fmt::format("the model '{}' is not served here; '{}' is", *name, model_.id), "model",
                 "model_not_found");
}

AnswerContext Api::context() {
  return {.scheduler = scheduler_,
          .model = text_,
          .metrics = metrics_,
          .context = model_.context,
          .timeout = options_.timeout};
}

void Api::start(const Exchange& e, std::vector<ChoiceSpec> choices, std::unique_ptr<AnswerWriter> writer,
                std::string_view ping) {
  const size_t most = scheduler_.options().max_queue;
  if (choices.size() > most)
    throw ApiError(
        400, fmt::format("{} answers to one request: at most {} texts may wait here", choices.size(), most),
        "n", "invalid_value");
  const auto job = std::make_shared<AnswerJob>(context(), e, std::move(choices), std::move(writer));
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(jobs_, [](const auto& weak) { return weak.expired(); });
    jobs_.push_back(job);
  }
  e->note("stream", !ping.empty());
  job->start();
  if (!ping.empty() && options_.ping.count() > 0) e->ping(options_.ping, std::string(ping));
}

void Api::stop_all(const ApiError& why) {
  std::vector<std::weak_ptr<AnswerJob>> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs = jobs_;
  }
  for (const auto& weak : jobs)
    if (const auto job = weak.lock()) job->stop(why);
}

// -- answers

void Api::chat_completions(const Exchange& e) {
  const OrderedJson body = body_of(e);
  check_model(body);
  const OpenAiChat chat = parse_openai_chat(body, text_);
  std::vector<ChoiceSpec> choices = make_choices(chat.request, text_, model_.context);
  const size_t n = choices.size();
  start(e, std::move(choices), openai_chat_writer(e, model_, chat.streaming, n),
        chat.streaming.stream ? kComment : "");
}

void Api::completions(const Exchange& e) {
  const OrderedJson body = body_of(e);
  check_model(body);
  OpenAiCompletion request = parse_openai_completion(body, text_, model_.context);
  auto writer = openai_completion_writer(e, model_, request);
  start(e, std::move(request.choices), std::move(writer), request.streaming.stream ? kComment : "");
}

void Api::responses(const Exchange& e) {
  const OrderedJson body = body_of(e);
  check_model(body);
  const OpenAiResponse request = parse_openai_response(body, text_, responses_);
  start(e, make_choices(request.request, text_, model_.context),
        openai_response_writer(e, model_, request, responses_), request.stream ? kComment : "");
}

void Api::messages(const Exchange& e) {
  const OrderedJson body = body_of(e);
  check_model(body);
  const AnthropicMessage message = parse_anthropic_message(body, text_);
  start(e, make_choices(message.request, text_, model_.context), anthropic_writer(e, model_, message.stream),
        message.stream ? kAnthropicPing : "");
}

void Api::stored_response(const Exchange& e) {
  const auto [id, below] = response_path(e->request().path);
  const auto found = responses_.find(id);
  if (!found || (!below.empty() && below != "/input_items"))
    throw ApiError(404, fmt::format("there is no response '{}{}' (any more)", id, below), "response_id",
                   "not_found");
  if (below.empty()) return reply_json(*e, found->response);
  reply_json(*e, {{"object", "list"}, {"data", found->input}, {"has_more", false}});
}

void Api::delete_response(const Exchange& e) {
  const auto [id, below] = response_path(e->request().path);
  if (!below.empty() || !responses_.remove(id))
    throw ApiError(404, fmt::format("there is no response '{}{}' (any more)", id, below), "response_id",
                   "not_found");
  reply_json(*e, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

// -- what is known without the engine

size_t Api::count_tokens(const ChatRequest& request) const {
  return encode_chat(text_.tokenizer(), render_request(request, text_)).size();
}

void Api::count_chat_tokens(const Exchange& e) {
  const size_t n = count_tokens(parse_openai_chat(body_of(e), text_).request);
  reply_json(*e, {{"object", "response.input_tokens"}, {"input_tokens", n}});
}

void Api::count_response_tokens(const Exchange& e) {
  const size_t n = count_tokens(parse_openai_response(body_of(e), text_, responses_).request);
  reply_json(*e, {{"object", "response.input_tokens"}, {"input_tokens", n}});
}

void Api::count_message_tokens(const Exchange& e) {
  reply_json(*e, {{"input_tokens", count_tokens(parse_anthropic_message(body_of(e), text_, true).request)}});
}

void Api::models(const Exchange& e) {
  reply_json(*e, {{"object", "list"},
                  {"data", OrderedJson::array({model_.json()})},
                  {"has_more", false},
                  {"first_id", model_.id},
                  {"last_id", model_.id}});
}

void Api::model(const Exchange& e) {
  const std::string& path = e->request().path;
  const auto name = percent_decoded(std::string_view(path).substr(path.find("models/") + 7));
  if (!name || !model_.answers_to(*name))
    throw ApiError(404,
                   fmt::format("the model '{}' is not served here; '{}' is", name.value_or("?"), model_.id),
                   "model", "model_not_found");
  reply_json(*e, model_.json());
}

void Api::tokenize(const Exchange& e) {
  const OrderedJson body = body_of(e);
  const RequestFields fields(body);
  const std::string text = fields.required_string("content");
  const Markers markers = fields.flag("parse_special").value_or(true) ? Markers::Recognised : Markers::AsText;
  const std::vector<Token> ids = fields.flag("add_special").value_or(false)
                                     ? text_.encode_text(text, markers)
                                     : text_.tokenizer().encode(text, markers);
  OrderedJson tokens = OrderedJson::array();
  const bool pieces = fields.flag("with_pieces").value_or(false);
  for (const Token id : ids) {
    if (!pieces) {
      tokens.push_back(id);
      continue;
    }
    const std::string bytes = text_.tokenizer().token_bytes(id);
    OrderedJson piece = bytes;
    if (well_formed_bytes(bytes) != bytes.size()) {
      piece = OrderedJson::array();
      for (const char c : bytes) piece.push_back(static_cast<unsigned char>(c));
    }
    tokens.push_back({{"id", id}, {"piece", piece}});
  }
  reply_json(*e, {{"tokens", tokens}});
}

void Api::detokenize(const Exchange& e) {
  const OrderedJson body = body_of(e);
  const RequestFields fields(body);
  const OrderedJson* tokens = fields.array("tokens");
  if (!tokens) fields.missing("tokens");
  if (tokens->size() > kMostTokensAtOnce)
    fields.wrong("tokens", fmt::format("at most {} ids", kMostTokensAtOnce));
  std::vector<Token> ids;
  for (const OrderedJson& id : *tokens) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= text_.n_vocab())
      fields.wrong("tokens", fmt::format("a list of token ids below {}", text_.n_vocab()));
    ids.push_back(static_cast<Token>(id.get<uint64_t>()));
  }
  reply_json(*e, {{"content", text_.tokenizer().decode(ids)}});
}

void Api::apply_template(const Exchange& e) {
  reply_json(*e, {{"prompt", render_request(parse_openai_chat(body_of(e), text_).request, text_).text}});
}

void Api::props(const Exchange& e) {
  const TextSettings settings = default_settings(text_);
  const SamplerOptions& s = settings.sampler;
  OrderedJson out = {{"default_generation_settings",
                      {{"params",
                        {{"temperature", s.temperature},
                         {"top_k", s.top_k},
                         {"top_p", s.top_p},
                         {"min_p", s.min_p},
                         {"repeat_penalty", s.penalties.repetition}}},
                       {"n_ctx", model_.context}}},
                     {"total_slots", scheduler_.options().parallel},
                     {"model_alias", model_.id},
                     {"modalities", {{"vision", false}, {"video", false}, {"audio", false}}},
                     {"build_info", "moeflux " + options_.version},
                     {"n_vocab", text_.n_vocab()}};
  try {
    const ChatTemplate& chat = text_.chat_template();
    out["chat_template"] = chat.source();
    for (const char* name : {"bos_token", "eos_token"}) out[name] = chat.special_token(name).value_or("");
  } catch (const Error&) {
    out["chat_template"] = nullptr;  // it can continue texts all the same
  }
  reply_json(*e, out);
}

void Api::engine(const Exchange& e) {
  const SchedulerStats texts = scheduler_.stats();
  const StoreStats store = engine_.store_stats();
  const MemoryPlan& plan = engine_.plan();
  OrderedJson layers = OrderedJson::array();
  const StoreSnapshot snapshot = engine_.store().snapshot();
  for (const StoreSnapshot::Layer& layer : snapshot.layers) {
    std::string held;
    OrderedJson used = OrderedJson::array();
    for (size_t i = 0; i < layer.held.size(); ++i) {
      held += static_cast<char>('0' + static_cast<int>(layer.held[i]));
      used.push_back(static_cast<int>(1000 * layer.used[i] + 0.5f));
    }
    layers.push_back({{"layer", layer.layer}, {"held", held}, {"used", used}});
  }
  const double uptime = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  reply_json(*e,
             {{"model", model_.id},
              {"backend", engine_.options().backend},
              {"uptime_s", uptime},
              {"context", model_.context},
              {"parallel", scheduler_.options().parallel},
              {"texts",
               {{"running", texts.running},
                {"waiting", texts.waiting},
                {"finished", texts.finished},
                {"failed", texts.failed},
                {"cancelled", texts.cancelled},
                {"refused", texts.refused}}},
              {"tokens",
               {{"prompt", texts.prompt_tokens}, {"reused", texts.reused_tokens}, {"new", texts.new_tokens}}},
              {"steps", texts.steps},
              {"step_s", texts.busy_s},
              {"memory",
               {{"resident_bytes", plan.resident_bytes},
                {"kv_bytes", plan.kv_bytes},
                {"ram_slot_bytes", engine_.store().slot_bytes()},
                {"vram_slot_bytes", plan.vram_slot_bytes},
                {"expert_bytes", plan.expert_bytes}}},
              {"store",
               {{"hits", store.hits},
                {"misses", store.misses},
                {"reads", store.reads},
                {"bytes_read", store.bytes_read},
                {"stall_s", store.stall_s},
                {"stall_bytes", store.stall_bytes},
                {"prefetched", store.prefetched},
                {"prefetch_useful", store.prefetch_useful},
                {"prefetch_late", store.prefetch_late},
                {"prefetch_wasted", store.prefetch_wasted},
                {"failed", store.failed}}},
              {"device",
               {{"found", texts.device.found},
                {"copied", texts.device.copied},
                {"computed_by_host", texts.device.computed},
                {"hit_rate", texts.device.hit_rate()}}},
              {"layers", layers}});
}

std::string Api::metrics_text(const std::string& more) const {
  MetricsText out;
  metrics_.write(out);
  const MemoryPlan& plan = engine_.plan();
  write_engine_metrics(out, scheduler_.stats(), engine_.store_stats(),
                       {.resident_bytes = plan.resident_bytes,
                        .kv_bytes = plan.kv_bytes,
                        .slot_bytes = engine_.store().slot_bytes(),
                        .expert_bytes = plan.expert_bytes,
                        .drive_bytes_per_s = engine_.drive().bytes_per_s});
  return out.text() + more;
}

}  // namespace moeflux
