#include "server/http_exchange.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <utility>

#include "base/error.h"

namespace moeflux {

HttpWake::HttpWake() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) fail_errno(errno, "eventfd");
}

void HttpWake::wake(uint64_t connection) {
  {
    const std::lock_guard lock(mutex_);
    connections_.push_back(connection);
    if (connections_.size() > 1) return;  // it has been told
  }
  const uint64_t one = 1;
  if (::write(event_.get(), &one, sizeof one) < 0) return;  // full: it will wake anyway
}

std::vector<uint64_t> HttpWake::take() {
  uint64_t count = 0;
  if (::read(event_.get(), &count, sizeof count) < 0) count = 0;
  const std::lock_guard lock(mutex_);
  return std::exchange(connections_, {});
}

HttpExchange::HttpExchange(HttpRequest request, HttpExchangeInfo info, std::shared_ptr<HttpWake> wake)
    : request_(std::move(request)), info_(std::move(info)), wake_(std::move(wake)) {
  close_ = !request_.keep_alive;
}

void HttpExchange::begin(const HttpResponse& response, bool whole) {
  check(!begun_, "one answer to a request");
  begun_ = true;
  status_ = response.status;
  no_body_ = request_.method == "HEAD" || response.status == 204 || response.status == 304;
  chunked_ = !whole && !request_.http_1_0;
  if (!whole && request_.http_1_0) close_ = true;  // the end of the connection is the end of the body
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  const auto add = [&head](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  if (!response.content_type.empty()) add("Content-Type", response.content_type);
  if (chunked_ && !no_body_) add("Transfer-Encoding", "chunked");
  if (whole && response.status != 204 && response.status != 304)
    add("Content-Length", std::to_string(response.body.size()));
  for (const auto& [name, value] : info_.headers) add(name, value);
  for (const auto& [name, value] : response.headers) add(name, value);
  if (close_) add("Connection", "close");
  head += "\r\n";
  pending_ += head;
}

void HttpExchange::append(std::string_view bytes) {
  if (no_body_ || bytes.empty()) return;
  written_ += bytes.size();
  if (!chunked_) {
    pending_ += bytes;
    return;
  }
  pending_ += fmt::format("{:x}\r\n", bytes.size());
  pending_ += bytes;
  pending_ += "\r\n";
}

void HttpExchange::reply(const HttpResponse& response) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_) {
      status_ = response.status;
      return;
    }
    begin(response, true);
    append(response.body);
    ended_ = true;
  }
  wake_->wake(info_.connection);
}

void HttpExchange::begin_stream(const HttpResponse& head) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_) {
      status_ = head.status;
      return;
    }
    begin(head, false);
    append(head.body);
  }
  wake_->wake(info_.connection);
}

bool HttpExchange::write(std::string_view piece) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_) return false;
    check(begun_ && !ended_, "a stream that has begun and has not ended");
    append(piece);
    overflowed_ = pending_.size() + unsent_ > info_.stream_bytes;
    if (overflowed_) gone_ = true;
  }
  wake_->wake(info_.connection);
  return !left();
}

void HttpExchange::end() {
  {
    const std::lock_guard lock(mutex_);
    if (gone_ || ended_) return;
    check(begun_, "a stream that has begun");
    if (chunked_ && !no_body_) pending_ += "0\r\n\r\n";
    ended_ = true;
  }
  wake_->wake(info_.connection);
}

void HttpExchange::close_after() {
  const std::lock_guard lock(mutex_);
  close_ = true;
}

void HttpExchange::on_leave(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (half_closed_) gone_ = true;
    if (!gone_) {
      on_leave_ = std::move(call);
      return;
    }
  }
  call();
  wake_->wake(info_.connection);
}

void HttpExchange::ping(std::chrono::milliseconds interval, std::string piece) {
  {
    const std::lock_guard lock(mutex_);
    timers_.ping = interval;
    timers_.ping_piece = std::move(piece);
  }
  wake_->wake(info_.connection);
}

void HttpExchange::on_deadline(Clock::time_point at, std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    timers_.deadline = at;
    on_deadline_ = std::move(call);
  }
  wake_->wake(info_.connection);
}

bool HttpExchange::left() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

int HttpExchange::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

uint64_t HttpExchange::bytes_written() const {
  const std::lock_guard lock(mutex_);
  return written_;
}

void HttpExchange::note(const std::string& key, Json value) {
  const std::lock_guard lock(mutex_);
  notes_[key] = std::move(value);
}

Json HttpExchange::notes() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

// -- for the server's thread

bool HttpExchange::take_output(std::string& out, size_t n_unsent) {
  const std::lock_guard lock(mutex_);
  out += pending_;
  unsent_ = n_unsent + pending_.size();
  pending_.clear();
  if (pending_.capacity() > (64 << 10)) pending_.shrink_to_fit();
  return ended_;
}

void HttpExchange::leave() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    gone_ = true;
    call = std::exchange(on_leave_, {});
  }
  if (call) call();
}

void HttpExchange::leave_if_wanted() {
  {
    const std::lock_guard lock(mutex_);
    if (!on_leave_) {
      half_closed_ = true;
      return;
    }
  }
  leave();
}

void HttpExchange::write_ping(const std::string& piece) {
  const std::lock_guard lock(mutex_);
  if (begun_ && !ended_ && !gone_) append(piece);
}

bool HttpExchange::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

bool HttpExchange::keeps_alive() const {
  const std::lock_guard lock(mutex_);
  return ended_ && !close_;
}

HttpExchange::Timers HttpExchange::timers() const {
  const std::lock_guard lock(mutex_);
  return timers_;
}

void HttpExchange::expire() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    timers_.deadline = Clock::time_point::max();
    if (!ended_) call = std::exchange(on_deadline_, {});
  }
  if (call) call();
}

}  // namespace moeflux
