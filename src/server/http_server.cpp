#include "server/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace moeflux {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kListener = 0, kWake = 1, kFirstConnection = 16;  // in epoll_event::data
constexpr size_t kReadBytes = 64 << 10;
constexpr int kReadsPerEvent = 16;  // then others have their turn
// A client that is still sending when its answer is there would never see it if the connection were closed
// with bytes unread.
constexpr std::chrono::milliseconds kLinger{2000};
constexpr size_t kLingerBytes = 1 << 20;

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first) freeaddrinfo(first);
  }
};

bool is_loopback_address(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

std::string address_text(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host.data();
}

std::string random_id() {
  std::array<uint64_t, 2> bits{};
  if (getrandom(bits.data(), sizeof bits, 0) != sizeof bits) fail_errno(errno, "getrandom");
  return fmt::format("req_{:016x}{:08x}", bits[0], static_cast<uint32_t>(bits[1]));
}

HttpResponse plain_fault(const HttpFault& fault, const HttpRequest&) {
  return {.status = fault.status, .body = fault.message + "\n", .content_type = "text/plain; charset=utf-8"};
}

}  // namespace

const char* to_string(HttpOutcome outcome) {
  switch (outcome) {
    case HttpOutcome::Sent:
      return "sent";
    case HttpOutcome::ClientLeft:
      return "client left";
    case HttpOutcome::ClientSlow:
      return "client too slow";
  }
  return "";
}

struct HttpServer::Connection {
  enum class Phase {
    Receiving,  // a request, or nothing
    Answering,  // the handler has it
    Lingering   // the answer has been sent, and the rest of what the client sends is thrown away
  };

  Connection(uint64_t number, Fd socket, std::string address, const HttpLimits& limits)
      : id(number), fd(std::move(socket)), client(std::move(address)), parser(limits) {}

  const uint64_t id;
  Fd fd;
  const std::string client;
  HttpParser parser;
  Phase phase = Phase::Receiving;
  std::string input;  // received and not yet parsed: what came after the request at hand
  std::string out;    // to be sent from `sent` on
  size_t sent = 0;
  std::shared_ptr<HttpExchange> exchange;
  bool ended = false;            // the exchange has given all that it has
  bool client_finished = false;  // it sends no more
  bool close = false;
  size_t body_counted = 0, lingered = 0;
  uint32_t watched = 0;
  Clock::time_point since = Clock::now();     // the phase's part (idle, head, body, lingering) has begun
  Clock::time_point progress = Clock::now();  // the client has taken something, or there was nothing
  Clock::time_point written = Clock::now();   // something was given to be sent
  Clock::time_point timer = Clock::time_point::max();

  size_t unsent() const { return out.size() - sent; }
};

// -- for other threads

HttpServer::HttpServer(HttpServerOptions options, HttpHandlers handlers)
    : options_(std::move(options)), handlers_(std::move(handlers)) {
  listen_on_address();
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) fail_errno(errno, "epoll_create1");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_->fd(), &event) != 0) fail_errno(errno, "epoll_ctl");
  last_connection_ = kFirstConnection;
  pool_ = std::make_unique<TaskPool>(options_.threads);
  thread_ = std::thread([this] { run(); });
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::stop() {
  if (!thread_.joinable()) return;
  wish_ = Wish::Stop;
  wake_->wake(kWake);
  thread_.join();
  pool_.reset();
}

void HttpServer::drain() {
  Wish run = Wish::Run;
  wish_.compare_exchange_strong(run, Wish::Drain);
  wake_->wake(kWake);
}

bool HttpServer::wait_idle(std::chrono::milliseconds most) {
  const auto limit = Clock::now() + most;
  while (n_answering_ > 0) {
    if (Clock::now() >= limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

HttpStats HttpServer::stats() const {
  return {n_connections_, n_requests_, n_refused_, n_open_, n_answering_};
}

void HttpServer::listen_on_address() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  AddressList list;
  const std::string port = std::to_string(options_.port);
  const int err = getaddrinfo(options_.host.c_str(), port.c_str(), &hints, &list.first);
  if (err != 0)
    fail(Errc::InvalidArgument, "'{}' is no address to listen on: {}", options_.host, gai_strerror(err));
  const addrinfo& address = *list.first;
  const std::string what = fmt::format("listening on {} port {}", options_.host, options_.port);
  listener_ = Fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) fail_errno(errno, what);
  const int on = 1;
  setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener_.get(), address.ai_addr, address.ai_addrlen) != 0) fail_errno(errno, what);
  if (listen(listener_.get(), SOMAXCONN) != 0) fail_errno(errno, what);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    fail_errno(errno, what);
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  loopback_ = is_loopback_address(reinterpret_cast<sockaddr*>(&bound));
}

// -- the server's thread

void HttpServer::run() {
  std::array<epoll_event, 64> events;
  while (wish_ != Wish::Stop) {
    if (wish_ == Wish::Drain && !draining_) begin_drain();
    const bool accept = !draining_ && !accepting_;
    if (accept) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = kListener;
      accepting_ = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) == 0;
    }
    int wait_ms = accepting_ || draining_ ? -1 : 100;
    if (!timers_.empty()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - Clock::now());
      const int ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
      wait_ms = wait_ms < 0 ? ms : std::min(ms, wait_ms);
    }
    const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms);
    for (int i = 0; i < n; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      if (id == kListener) accept_all();
      if (const auto it = connections_.find(id); it != connections_.end())
        on_event(*it->second, events[static_cast<size_t>(i)].events);
    }
    for (const uint64_t id : wake_->take())
      if (const auto it = connections_.find(id); it != connections_.end()) pump(*it->second);
    const auto now = Clock::now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      Connection& c = *connections_.at(timers_.begin()->second);
      timers_.erase(timers_.begin());
      c.timer = Clock::time_point::max();
      on_time(c);
    }
    dropped_.clear();
  }
  while (!connections_.empty()) drop(*connections_.begin()->second, HttpOutcome::ClientLeft);
  dropped_.clear();
}

void HttpServer::begin_drain() {
  draining_ = true;
  if (accepting_) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  accepting_ = false;
  listener_ = Fd();
  std::vector<Connection*> idle;
  for (const auto& [id, c] : connections_)
    if (c->phase == Connection::Phase::Receiving && c->parser.idle() && c->input.empty())
      idle.push_back(c.get());
  for (Connection* c : idle) drop(*c, HttpOutcome::Sent);
}

void HttpServer::accept_all() {
  for (;;) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    Fd fd(accept4(listener_.get(), generic, &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) {  // out of descriptors or memory: try again a little later
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
        accepting_ = false;
      }
      return;
    }
    ++n_connections_;
    if (connections_.size() >= options_.limits.connections) {
      ++n_refused_;
      constexpr std::string_view kFull =
          "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: "
          "close\r\n\r\n";
      [[maybe_unused]] const ssize_t sent = send(fd.get(), kFull.data(), kFull.size(), MSG_NOSIGNAL);
      continue;
    }
    add_connection(std::move(fd), address_text(generic, length));
  }
}

void HttpServer::add_connection(Fd fd, std::string client) {
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const uint64_t id = ++last_connection_;
  auto c = std::make_unique<Connection>(id, std::move(fd), std::move(client), options_.limits);
  epoll_event event{};
  event.events = c->watched = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, c->fd.get(), &event) != 0) return;
  n_open_ = connections_.size() + 1;
  schedule(*(connections_[id] = std::move(c)));
}

void HttpServer::on_event(Connection& c, uint32_t events) {
  using Phase = Connection::Phase;
  if (events & (EPOLLERR | EPOLLHUP)) return drop(c, HttpOutcome::ClientLeft);
  if (events & EPOLLRDHUP && c.phase == Phase::Answering) {
    // It has closed its side. Whoever produces the answer may want to stop; a short one still goes out.
    c.client_finished = true;
    c.exchange->leave_if_wanted();
    if (c.exchange->left()) return drop(c, HttpOutcome::ClientLeft);
  }
  if (events & EPOLLIN && c.phase != Phase::Answering) return receive(c);
  if (events & EPOLLRDHUP && c.phase != Phase::Answering) return receive(c);
  pump(c);
}

void HttpServer::receive(Connection& c) {
  std::array<char, kReadBytes> buffer;
  for (int i = 0; i < kReadsPerEvent && c.phase != Connection::Phase::Answering; ++i) {
    const ssize_t n = recv(c.fd.get(), buffer.data(), buffer.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) return drop(c, HttpOutcome::ClientLeft);
    if (c.phase == Connection::Phase::Lingering) {
      c.lingered += static_cast<size_t>(n);
      if (c.lingered > kLingerBytes) return drop(c, HttpOutcome::Sent);
      continue;
    }
    c.input.append(buffer.data(), static_cast<size_t>(n));
    read_requests(c);
  }
  pump(c);
}

// As far as one request can be made of what has been received.
void HttpServer::read_requests(Connection& c) {
  using State = HttpParser::State;
  size_t used = 0;
  while (c.phase == Connection::Phase::Receiving) {
    const bool was_idle = c.parser.idle();
    const State before = c.parser.state();
    const size_t n = c.parser.feed(std::string_view(c.input).substr(used));
    used += n;
    if (was_idle && !c.parser.idle()) c.since = Clock::now();
    const State state = c.parser.state();
    count_body(c);
    if (state == State::Failed) {
      answer_fault(c, c.parser.fault());
    } else if (before == State::Head && state != State::Head) {
      after_head(c);
    } else if (body_bytes_ > options_.limits.all_body_bytes) {
      answer_fault(c, {503, "too many bytes of requests are being received at once"});
    }
    if (c.phase == Connection::Phase::Receiving && state == State::Complete) dispatch(c);
    if (n == 0) break;
  }
  c.input.erase(0, used);
  schedule(c);
}

void HttpServer::after_head(Connection& c) {
  c.since = Clock::now();
  if (handlers_.admit) {
    if (const auto refusal = handlers_.admit(c.parser.request()))
      return answer_directly(c, *refusal, c.parser.state() != HttpParser::State::Complete);
  }
  if (c.parser.wants_continue()) c.out += "HTTP/1.1 100 Continue\r\n\r\n";
}

void HttpServer::count_body(Connection& c) {
  const size_t now = c.parser.request().body.size();
  body_bytes_ += now - c.body_counted;
  c.body_counted = now;
}

std::shared_ptr<HttpExchange> HttpServer::begin_exchange(Connection& c, HttpRequest request) {
  if (draining_) request.keep_alive = false;
  HttpExchangeInfo info{.id = random_id(),
                        .client = c.client,
                        .connection = c.id,
                        .stream_bytes = options_.limits.stream_bytes};
  if (handlers_.headers) info.headers = handlers_.headers(request, info.id);
  c.exchange = std::make_shared<HttpExchange>(std::move(request), std::move(info), wake_);
  c.phase = Connection::Phase::Answering;
  c.ended = false;
  c.progress = c.written = Clock::now();
  ++n_requests_;
  ++n_answering_;
  return c.exchange;
}

void HttpServer::answer_fault(Connection& c, const HttpFault& fault) {
  const HttpResponse response = (handlers_.fault ? handlers_.fault : plain_fault)(fault, c.parser.request());
  answer_directly(c, response, true);
}

void HttpServer::answer_directly(Connection& c, const HttpResponse& response, bool close) {
  HttpRequest request = c.parser.request();
  if (close) request.keep_alive = false;
  if (!close) c.parser.take();
  begin_exchange(c, std::move(request))->reply(response);
}

void HttpServer::dispatch(Connection& c) {
  const auto exchange = begin_exchange(c, c.parser.take());
  pool_->add([this, exchange] {
    const auto failed = [&](const char* what) {
      if (exchange->status() != 0) return;  // an answer has begun
      const HttpFault fault{500, what};
      exchange->reply((handlers_.fault ? handlers_.fault : plain_fault)(fault, exchange->request()));
    };
    try {
      handlers_.handle(exchange);
    } catch (const std::exception& e) {
      failed(e.what());
    } catch (...) {
      failed("an unknown error");
    }
  });
}

// Brings what is to be sent on its way, and the connection on where that is done.
void HttpServer::pump(Connection& c) {
  if (c.phase == Connection::Phase::Answering) {
    const bool left = c.exchange->left();  // asked first: one that has overflowed has left as well
    if (c.exchange->overflowed()) return drop(c, HttpOutcome::ClientSlow);
    if (left) return drop(c, HttpOutcome::ClientLeft);
    const size_t before = c.out.size();
    c.ended = c.exchange->take_output(c.out, c.unsent());
    if (c.out.size() != before) c.written = Clock::now();
    if (before == c.sent) c.progress = Clock::now();  // there was nothing to take
  }
  if (!send_some(c)) return drop(c, HttpOutcome::ClientLeft);
  if (c.phase == Connection::Phase::Answering && c.ended && c.unsent() == 0) return end_answer(c);
  watch(c);
  schedule(c);
}

bool HttpServer::send_some(Connection& c) {
  while (c.unsent() > 0) {
    const ssize_t n = send(c.fd.get(), c.out.data() + c.sent, c.unsent(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    c.sent += static_cast<size_t>(n);
    c.progress = Clock::now();
  }
  c.out.clear();
  c.sent = 0;
  return true;
}

void HttpServer::end_answer(Connection& c) {
  const bool close = !c.exchange->keeps_alive() || draining_;
  if (handlers_.on_end) handlers_.on_end(*c.exchange, HttpOutcome::Sent);
  c.exchange.reset();
  --n_answering_;
  body_bytes_ -= c.body_counted;
  c.body_counted = 0;
  if (close || c.client_finished) return linger(c);
  c.phase = Connection::Phase::Receiving;
  c.since = Clock::now();
  read_requests(c);   // the next request may be here already
  wake_->wake(c.id);  // not now: there may be very many
}

void HttpServer::linger(Connection& c) {
  c.phase = Connection::Phase::Lingering;
  c.input.clear();
  c.since = Clock::now();
  shutdown(c.fd.get(), SHUT_WR);
  watch(c);
  schedule(c);
}

void HttpServer::drop(Connection& c, HttpOutcome outcome) {
  if (c.phase == Connection::Phase::Answering) {
    c.exchange->leave();
    if (handlers_.on_end) handlers_.on_end(*c.exchange, outcome);
    --n_answering_;
  }
  body_bytes_ -= c.body_counted;
  if (c.timer != Clock::time_point::max()) timers_.erase({c.timer, c.id});
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, c.fd.get(), nullptr);
  c.fd = Fd();
  const auto it = connections_.find(c.id);
  dropped_.push_back(std::move(it->second));
  connections_.erase(it);
  n_open_ = connections_.size();
}

void HttpServer::watch(Connection& c) {
  uint32_t events = 0;
  if (!c.client_finished) events |= EPOLLRDHUP;
  if (c.phase != Connection::Phase::Answering) events |= EPOLLIN;
  if (c.unsent() > 0) events |= EPOLLOUT;
  if (events == c.watched) return;
  c.watched = events;
  epoll_event event{};
  event.events = events;
  event.data.u64 = c.id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, c.fd.get(), &event);
}

// -- time

HttpServer::Clock::time_point HttpServer::due(const Connection& c) const {
  const HttpLimits& limits = options_.limits;
  switch (c.phase) {
    case Connection::Phase::Receiving:
      if (c.parser.idle()) return c.since + limits.idle;
      return c.since + (c.parser.state() == HttpParser::State::Head ? limits.head : limits.body);
    case Connection::Phase::Lingering:
      return c.since + kLinger;
    case Connection::Phase::Answering:
      break;
  }
  const HttpExchange::Timers timers = c.exchange->timers();
  Clock::time_point first = timers.deadline;
  if (c.unsent() > 0) first = std::min(first, c.progress + limits.write);
  if (timers.ping.count() > 0 && c.unsent() == 0) first = std::min(first, c.written + timers.ping);
  return first;
}

void HttpServer::schedule(Connection& c) {
  const Clock::time_point at = due(c);
  if (at == c.timer) return;
  if (c.timer != Clock::time_point::max()) timers_.erase({c.timer, c.id});
  if (at != Clock::time_point::max()) timers_.insert({at, c.id});
  c.timer = at;
}

void HttpServer::on_time(Connection& c) {
  const auto now = Clock::now();
  if (c.phase == Connection::Phase::Lingering) return drop(c, HttpOutcome::Sent);
  if (c.phase == Connection::Phase::Receiving) {
    if (c.parser.idle()) return drop(c, HttpOutcome::Sent);
    answer_fault(c, {408, c.parser.state() == HttpParser::State::Head
                              ? "the headers of the request did not come in time"
                              : "the body of the request did not come in time"});
    return pump(c);
  }
  const HttpExchange::Timers timers = c.exchange->timers();
  if (c.unsent() > 0 && now >= c.progress + options_.limits.write) return drop(c, HttpOutcome::ClientSlow);
  if (now >= timers.deadline) c.exchange->expire();
  if (timers.ping.count() > 0 && c.unsent() == 0 && now >= c.written + timers.ping) {
    c.exchange->write_ping(timers.ping_piece);
    c.written = now;  // also where no stream has begun
  }
  pump(c);
}

}  // namespace moeflux
