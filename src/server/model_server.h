// The server as a whole: connections, who may ask, health, metrics, the web page, the log, and the API of a
// model once one is loaded. Until then it says that it is loading.
#pragma once

#include <atomic>
#include <memory>

#include "server/access.h"
#include "server/api.h"
#include "server/http_server.h"

namespace moeflux {

struct ModelServerOptions {
  HttpServerOptions http = {};
  AccessRules access = {};  // names of hosts are checked where the address is a loopback one
  ApiOptions api = {};
  bool log = true;  // a line of JSON on stderr for every request
};

class ModelServer {
 public:
  explicit ModelServer(ModelServerOptions options);  // listens from here on; throws Error where it cannot
  ~ModelServer();

  std::string url() const;
  uint16_t port() const { return http_->port(); }
  bool is_loopback() const { return http_->is_loopback(); }

  // Answers with this model from here on. All must live as long as the server.
  void serve(Engine& engine, const TextModel& text, Scheduler& scheduler, const ModelInfo& model);

  // Takes no more requests. Then, false until all that had come are answered (wait at most so long).
  void begin_shutdown();
  bool wait_idle(std::chrono::milliseconds most) { return http_->wait_idle(most); }
  void end_answers();  // those under way end with an error

 private:
  std::optional<HttpResponse> admit(const HttpRequest& request) const;
  void handle(const std::shared_ptr<HttpExchange>& e);
  HttpResponse health(bool ready_only) const;
  HttpHeaders common_headers(const HttpRequest& request, const std::string& id) const;
  void log(const HttpExchange& e, HttpOutcome outcome);
  std::string http_metrics() const;

  ModelServerOptions options_;
  ServerMetrics metrics_;
  std::unique_ptr<Api> api_storage_;
  std::atomic<Api*> api_ = nullptr;  // null while loading
  Scheduler* scheduler_ = nullptr;
  std::atomic<bool> stopping_ = false;
  std::atomic<const HttpServer*> running_ = nullptr;  // for its threads, which run before it is in its place
  std::unique_ptr<HttpServer> http_;                  // last: its threads use the rest
};

}  // namespace moeflux
