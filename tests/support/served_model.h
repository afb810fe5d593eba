// A model served on a loopback port, for as long as the object lives.
#pragma once

#include <string>

#include "server/model_server.h"
#include "support/http_client.h"

namespace moeflux::test {

struct ServedModelOptions {
  EngineOptions engine = {};
  SchedulerOptions scheduler = {};
  ModelServerOptions server = {};
};

class ServedModel {
 public:
  explicit ServedModel(const std::filesystem::path& package, ServedModelOptions options = {})
      : text_(package),
        engine_(package, options.engine),
        scheduler_(engine_, text_, options.scheduler),
        server_(quiet(std::move(options.server))) {
    text_.chat_template();
    server_.serve(engine_, text_, scheduler_, describe_model(engine_, "test"));
  }

  uint16_t port() const { return server_.port(); }
  HttpClient client() const { return HttpClient(port()); }
  ClientResponse post(const std::string& path, const Json& body, const std::string& headers = "") const {
    return client().post(path, body.dump(), headers);
  }
  ClientResponse get(const std::string& path, const std::string& headers = "") const {
    return client().get(path, headers);
  }
  ModelServer& server() { return server_; }
  Scheduler& scheduler() { return scheduler_; }
  const TextModel& text() const { return text_; }

 private:
  static ModelServerOptions quiet(ModelServerOptions options) {
    options.log = false;
    return options;
  }

  TextModel text_;
  Engine engine_;
  Scheduler scheduler_;
  ModelServer server_;
};

}  // namespace moeflux::test
