#include "server/model_server.h"

#include <cstdio>
#include <ctime>

#include "server/json_text.h"

namespace moeflux {
namespace {

bool is_health(std::string_view path) { return path == "/health" || path == "/v1/health"; }

const StaticFile* find_static(std::string_view path) {
  for (const StaticFile& file : static_files())
    if (file.path == path) return &file;
  return nullptr;
}

HttpResponse static_response(const StaticFile& file, const HttpRequest& request) {
  HttpResponse out{.content_type = std::string(file.content_type),
                   .headers = {{"ETag", std::string(file.etag)},
                               {"Cache-Control", "no-cache"},
                               {"Content-Security-Policy", std::string(page_policy())},
                               {"Referrer-Policy", "no-referrer"}}};
  if (request.header("if-none-match") == file.etag)
    out.status = 304;
  else
    out.body = file.bytes;
  return out;
}

// What is there without a model: paths that need no key, and the metrics.
std::optional<ApiRoute> own_route(const HttpRequest& request) {
  if (is_health(request.path)) return ApiRoute{"GET", "/health", true};
  if (request.path == "/ready") return ApiRoute{"GET", "/ready", true};
  if (request.path == "/metrics") return ApiRoute{"GET", "/metrics", false};
  if (find_static(request.path)) return ApiRoute{"GET", "/", true};
  return {};
}

std::optional<ApiRoute> route_of(const HttpRequest& request) {
  if (const auto own = own_route(request)) return own;
  const ApiRoute* route = Api::find_route(request);
  return route ? std::optional(*route) : std::nullopt;
}

std::string http_date(std::time_t time) {
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

std::string log_time() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char text[32];
  const size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", std::string_view(text, n), now.tv_nsec / 1'000'000);
}

}  // namespace

ModelServer::ModelServer(ModelServerOptions options) : options_(std::move(options)) {
  HttpHandlers handlers;
  handlers.handle = [this](const auto& e) { handle(e); };
  handlers.admit = [this](const HttpRequest& request) { return admit(request); };
  handlers.fault = [](const HttpFault& fault, const HttpRequest& request) {
    return error_response({fault.status, fault.message}, style_of(request.path), "");
  };
  handlers.headers = [this](const HttpRequest& r, const std::string& id) { return common_headers(r, id); };
  handlers.on_end = [this](const HttpExchange& e, HttpOutcome outcome) { log(e, outcome); };
  http_ = std::make_unique<HttpServer>(options_.http, std::move(handlers));
  running_ = http_.get();
}

ModelServer::~ModelServer() {
  http_->stop();  // clients that are left have left, which cancels their answers
  while (scheduler_ && !scheduler_->wait_idle(std::chrono::seconds(1))) {
  }
}

std::string ModelServer::url() const {
  const std::string& host = http_->host();
  return fmt::format("http://{}:{}", host.find(':') == host.npos ? host : "[" + host + "]", port());
}

void ModelServer::serve(Engine& engine, const TextModel& text, Scheduler& scheduler, const ModelInfo& model) {
  api_storage_ = std::make_unique<Api>(engine, text, scheduler, metrics_, model, options_.api);
  scheduler_ = &scheduler;
  api_ = api_storage_.get();
}

void ModelServer::begin_shutdown() {
  stopping_ = true;
  if (api_) scheduler_->stop_accepting();
  http_->drain();
}

void ModelServer::end_answers() {
  if (Api* api = api_) api->stop_all({503, "the server is shutting down", "", "shutting_down"});
}

// -- requests

std::optional<HttpResponse> ModelServer::admit(const HttpRequest& request) const {
  const auto refuse = [&](const ApiError& error) {
    return error_response(error, style_of(request.path), "");
  };
  const std::optional<ApiRoute> route = route_of(request);
  AccessRules rules = options_.access;
  const HttpServer* server = running_;
  rules.only_loopback_names |= !server || server->is_loopback();
  if (const auto refusal = refusal_of(rules, request, route && route->is_public)) return refuse(*refusal);
  if (request.method == "OPTIONS")
    return HttpResponse{
        .status = 204, .content_type = "", .headers = {{"Allow", "GET, HEAD, POST, DELETE, OPTIONS"}}};
  if (!route) return refuse({404, fmt::format("there is nothing at {}", request.path), "", "not_found"});
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  if (method != route->method) {
    HttpResponse wrong = refuse(
        {405, fmt::format("{} does not go with {}, but {}", request.method, request.path, route->method), "",
         "method_not_allowed"});
    wrong.headers.emplace_back("Allow", route->method);
    return wrong;
  }
  return {};
}

void ModelServer::handle(const std::shared_ptr<HttpExchange>& e) {
  const HttpRequest& request = e->request();
  if (is_health(request.path)) return e->reply(health(false));
  if (request.path == "/ready") return e->reply(health(true));
  if (const StaticFile* file = find_static(request.path)) return e->reply(static_response(*file, request));
  Api* api = api_;
  if (!api) return e->reply(health(true));
  if (request.path == "/metrics")
    return e->reply({.body = api->metrics_text(http_metrics()),
                     .content_type = "text/plain; version=0.0.4; charset=utf-8"});
  api->handle(e);
}

HttpResponse ModelServer::health(bool ready_only) const {
  const auto unavailable = [](const char* what) {
    const OrderedJson body = {{"error", {{"code", 503}, {"message", what}, {"type", "unavailable_error"}}}};
    return HttpResponse{.status = 503, .body = json_text(body) + "\n", .headers = {{"Retry-After", "1"}}};
  };
  if (!api_) return unavailable("Loading model");
  if (stopping_ && ready_only) return unavailable("Shutting down");
  return {.body = "{\"status\":\"ok\"}\n"};
}

HttpHeaders ModelServer::common_headers(const HttpRequest& request, const std::string& id) const {
  HttpHeaders headers = cors_headers(options_.access, request);
  headers.emplace_back("X-Request-Id", id);
  headers.emplace_back("Request-Id", id);
  headers.emplace_back("X-Content-Type-Options", "nosniff");
  headers.emplace_back("Date", http_date(std::time(nullptr)));
  return headers;
}

std::string ModelServer::http_metrics() const {
  const HttpServer* server = running_;
  const HttpStats stats = server ? server->stats() : HttpStats{};
  MetricsText out;
  out.counter("moeflux_http_connections_total", "Connections that clients have made",
              static_cast<double>(stats.connections));
  out.counter("moeflux_http_connections_refused_total", "Connections beyond the limit",
              static_cast<double>(stats.refused));
  out.gauge("moeflux_http_connections_open", "Connections now", static_cast<double>(stats.open));
  out.gauge("moeflux_http_requests_open", "Requests that are being answered",
            static_cast<double>(stats.answering));
  return out.text();
}

void ModelServer::log(const HttpExchange& e, HttpOutcome outcome) {
  const double seconds = std::chrono::duration<double>(HttpExchange::Clock::now() - e.begun()).count();
  const std::optional<ApiRoute> route = route_of(e.request());
  metrics_.count_request(route ? std::string(route->path) : "other", e.status(), seconds);
  if (!options_.log) return;
  OrderedJson line = {{"time", log_time()},
                      {"id", e.id()},
                      {"client", e.client()},
                      {"method", e.request().method},
                      {"path", e.request().path},  // without the query, where people put secrets
                      {"status", e.status()},
                      {"outcome", to_string(outcome)},
                      {"seconds", seconds},
                      {"bytes_in", e.request().body.size()},
                      {"bytes_out", e.bytes_written()}};
  const Json notes = e.notes();
  for (const auto& [key, value] : notes.items()) line[key] = value;
  std::fputs((json_text(line) + "\n").c_str(), stderr);
}

}  // namespace moeflux
