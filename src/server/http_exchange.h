// One request and its answer, as a handler sees it: read the request, then reply at once, or stream. The
// functions may be called from any thread and never wait; bytes go to the client from the server's own
// thread. A client that leaves, or does not read what it is sent, is gone: writing then says so.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/owned.h"
#include "server/http_message.h"

namespace moeflux {

// How other threads tell the server's thread which connections have something to do.
class HttpWake {
 public:
  HttpWake();
  int fd() const { return event_.get(); }
  void wake(uint64_t connection);
  std::vector<uint64_t> take();

 private:
  Fd event_;
  std::mutex mutex_;
  std::vector<uint64_t> connections_;
};

struct HttpExchangeInfo {
  std::string id;      // of the request, unique
  std::string client;  // address
  uint64_t connection = 0;
  HttpHeaders headers = {};  // of every answer
  size_t stream_bytes = 0;   // HttpLimits
};

class HttpExchange {
 public:
  using Clock = std::chrono::steady_clock;

  HttpExchange(HttpRequest request, HttpExchangeInfo info, std::shared_ptr<HttpWake> wake);
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  const HttpRequest& request() const { return request_; }
  const std::string& id() const { return info_.id; }
  const std::string& client() const { return info_.client; }
  Clock::time_point begun() const { return begun_at_; }

  void reply(const HttpResponse& response);  // the whole answer

  void begin_stream(const HttpResponse& head);  // its body is the first piece
  bool write(std::string_view piece);           // false: nobody is there any more
  void end();
  void close_after();  // the connection does not live on after this answer

  // Called once if the client leaves before the answer has ended; at once if it has left already. The calls
  // must not own the exchange.
  void on_leave(std::function<void()> call);
  // While nothing else is sent, `piece` is, after each such interval.
  void ping(std::chrono::milliseconds interval, std::string piece);
  // Called once, if the answer has not ended by then.
  void on_deadline(Clock::time_point at, std::function<void()> call);

  bool left() const;
  int status() const;
  uint64_t bytes_written() const;
  // What the log says about this request beside the usual.
  void note(const std::string& key, Json value);
  Json notes() const;

 private:
  friend class HttpServer;
  struct Timers {
    std::chrono::milliseconds ping{0};
    std::string ping_piece;
    Clock::time_point deadline = Clock::time_point::max();
  };

  void append(std::string_view bytes);
  void begin(const HttpResponse& response, bool whole);

  // For the server's thread.
  bool take_output(std::string& out, size_t n_unsent);  // true: the answer has ended
  void leave();                                         // the client has gone
  void leave_if_wanted();                               // the same, if somebody has asked to be told
  void write_ping(const std::string& piece);
  bool overflowed() const;
  bool keeps_alive() const;
  Timers timers() const;
  void expire();

  const HttpRequest request_;
  const HttpExchangeInfo info_;
  const std::shared_ptr<HttpWake> wake_;
  const Clock::time_point begun_at_ = Clock::now();

  mutable std::mutex mutex_;  // guards everything below
  std::string pending_;
  size_t unsent_ = 0;  // bytes that the server's thread holds
  uint64_t written_ = 0;
  int status_ = 0;
  bool begun_ = false, ended_ = false, chunked_ = false, close_ = false, no_body_ = false;
  bool gone_ = false, overflowed_ = false;
  bool half_closed_ = false;  // the client sends no more: a long answer is not worth the while
  std::function<void()> on_leave_, on_deadline_;
  Timers timers_;
  Json notes_ = Json::object();
};

}  // namespace moeflux
