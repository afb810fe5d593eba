// What the server answers, by method and path: the table of endpoints, and the handler of each. Everything
// about one request; connections are the HTTP server's, generation is the scheduler's.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "server/answer_job.h"
#include "server/model_info.h"
#include "server/response_store.h"
#include "server/static_files.h"

namespace moeflux {

struct ApiOptions {
  std::chrono::milliseconds timeout{0};    // of a whole answer; 0: none
  std::chrono::milliseconds ping{15'000};  // between comments in a stream in which nothing happens
  size_t response_bytes = 64 << 20;        // of answers that the responses API keeps
  std::string version;
};

struct ApiRoute {
  std::string_view method, path;  // a path that ends with / stands for what is below it
  bool is_public = false;         // needs no API key
};

class Api {
 public:
  using Exchange = std::shared_ptr<HttpExchange>;

  Api(Engine& engine, const TextModel& text, Scheduler& scheduler, ServerMetrics& metrics, ModelInfo model,
      ApiOptions options);

  // Null where there is no such path. With another method, the route of the path with its own method.
  static const ApiRoute* find_route(const HttpRequest& request);

  void handle(const Exchange& exchange);  // answers, now or later; throws nothing but what memory throws

  void stop_all(const ApiError& why);  // ends every answer under way
  std::string metrics_text(const std::string& more) const;

 private:
  using Handler = void (Api::*)(const Exchange&);
  struct Endpoint {
    ApiRoute route;
    Handler handler;
  };
  static std::span<const Endpoint> endpoints();
  static const Endpoint* find(const HttpRequest& request);

  void chat_completions(const Exchange& e);
  void completions(const Exchange& e);
  void count_chat_tokens(const Exchange& e);
  void responses(const Exchange& e);
  void count_response_tokens(const Exchange& e);
  void stored_response(const Exchange& e);
  void delete_response(const Exchange& e);
  void messages(const Exchange& e);
  void count_message_tokens(const Exchange& e);
  void models(const Exchange& e);
  void model(const Exchange& e);
  void tokenize(const Exchange& e);
  void detokenize(const Exchange& e);
  void apply_template(const Exchange& e);
  void props(const Exchange& e);
  void engine(const Exchange& e);

  OrderedJson body_of(const Exchange& e) const;
  void check_model(const OrderedJson& body) const;
  // `ping`: what a stream says while nothing happens; empty: the answer is no stream.
  void start(const Exchange& e, std::vector<ChoiceSpec> choices, std::unique_ptr<AnswerWriter> writer,
             std::string_view ping);
  size_t count_tokens(const ChatRequest& request) const;
  AnswerContext context();

  Engine& engine_;
  const TextModel& text_;
  Scheduler& scheduler_;
  ServerMetrics& metrics_;
  const ModelInfo model_;
  const ApiOptions options_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();

  ResponseStore responses_;

  std::mutex mutex_;  // guards jobs_
  std::vector<std::weak_ptr<AnswerJob>> jobs_;
};

}  // namespace moeflux
