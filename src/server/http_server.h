// An HTTP/1.1 server: one thread owns all connections (epoll), a few others run the handler. A stream costs
// no thread. Everything that a client can make grow or last is limited (HttpLimits); a client that leaves is
// noticed at once. Plain HTTP: encryption is for a proxy in front of it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "server/http_exchange.h"
#include "server/http_parser.h"
#include "server/task_pool.h"

namespace moeflux {

enum class HttpOutcome {
  Sent,        // the whole answer
  ClientLeft,  // before its end
  ClientSlow   // did not read it
};
const char* to_string(HttpOutcome outcome);

struct HttpHandlers {
  // Answers, now or later; on one of several threads. An exception becomes fault(500).
  std::function<void(const std::shared_ptr<HttpExchange>&)> handle;
  // Looks at a request whose headers alone are there; an answer refuses it before its body is read. On the
  // server's thread, as are the rest.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> admit = {};
  // The answer to what could not be understood or has failed. The request may be incomplete or empty.
  std::function<HttpResponse(const HttpFault&, const HttpRequest&)> fault = {};
  std::function<HttpHeaders(const HttpRequest&, const std::string& id)> headers = {};  // of every answer
  std::function<void(const HttpExchange&, HttpOutcome)> on_end = {};
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;   // 0: any that is free
  size_t threads = 2;  // for the handler
  HttpLimits limits = {};
};

struct HttpStats {
  uint64_t connections = 0, requests = 0, refused = 0;  // refused: connections beyond the limit
  uint64_t open = 0, answering = 0;                     // now
};

class HttpServer {
 public:
  // Listens from here on; throws Error where it cannot.
  HttpServer(HttpServerOptions options, HttpHandlers handlers);
  ~HttpServer();
  void stop();  // ends all connections; no handler runs any more

  const std::string& host() const { return options_.host; }
  uint16_t port() const { return port_; }
  bool is_loopback() const { return loopback_; }
  HttpStats stats() const;

  // No new connections and no new requests from here on; requests that have come are answered.
  void drain();
  // True once nothing is being answered.
  bool wait_idle(std::chrono::milliseconds most);

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection;

  void listen_on_address();
  void run();
  void accept_all();
  void add_connection(Fd fd, std::string client);
  void on_event(Connection& c, uint32_t events);
  void receive(Connection& c);
  void read_requests(Connection& c);
  void after_head(Connection& c);
  void count_body(Connection& c);
  void answer_fault(Connection& c, const HttpFault& fault);
  void answer_directly(Connection& c, const HttpResponse& response, bool close);
  std::shared_ptr<HttpExchange> begin_exchange(Connection& c, HttpRequest request);
  void dispatch(Connection& c);
  void pump(Connection& c);
  bool send_some(Connection& c);  // false: the connection is gone
  void end_answer(Connection& c);
  void linger(Connection& c);
  void drop(Connection& c, HttpOutcome outcome);
  void watch(Connection& c);
  void schedule(Connection& c);
  Clock::time_point due(const Connection& c) const;
  void on_time(Connection& c);
  void begin_drain();

  HttpServerOptions options_;
  const HttpHandlers handlers_;
  uint16_t port_ = 0;
  bool loopback_ = false;
  Fd listener_, epoll_;
  const std::shared_ptr<HttpWake> wake_ = std::make_shared<HttpWake>();

  // Of the server's thread.
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::set<std::pair<Clock::time_point, uint64_t>> timers_;
  std::vector<std::unique_ptr<Connection>> dropped_;  // until the events at hand are done
  uint64_t last_connection_ = 0;
  size_t body_bytes_ = 0;
  bool accepting_ = false, draining_ = false;

  enum class Wish { Run, Drain, Stop };
  std::atomic<Wish> wish_ = Wish::Run;
  std::atomic<uint64_t> n_connections_ = 0, n_requests_ = 0, n_refused_ = 0, n_open_ = 0, n_answering_ = 0;

  std::unique_ptr<TaskPool> pool_;
  std::thread thread_;
};

}  // namespace moeflux
