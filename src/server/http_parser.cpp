#include "server/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace moeflux {
namespace {

constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr size_t kLongestChunkLine = 1024;  // a size and its extensions

bool is_token_character(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_token_character);
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Whether a comma-separated list holds this word.
bool lists(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    if (equal_ignoring_case(trimmed(list.substr(0, end)), word)) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

}  // namespace

void HttpParser::fail(int status, std::string message) {
  state_ = State::Failed;
  fault_ = {status, std::move(message)};
}

HttpRequest HttpParser::take() {
  HttpRequest out = std::move(request_);
  request_ = {};
  head_.clear();
  line_.clear();
  chunked_ = wants_continue_ = body_begun_ = false;
  remaining_ = 0;
  chunk_ = Chunk::Size;
  trailer_bytes_ = 0;
  state_ = State::Head;
  return out;
}

size_t HttpParser::feed(std::string_view data) {
  switch (state_) {
    case State::Head:
      return feed_head(data);
    case State::Body:
      if (data.empty()) return 0;
      body_begun_ = true;
      return chunked_ ? feed_chunked(data) : feed_body(data);
    default:
      return 0;
  }
}

size_t HttpParser::feed_head(std::string_view data) {
  size_t skipped = 0;
  // Some clients end a body with a line end too many.
  while (head_.empty() && skipped < data.size() && (data[skipped] == '\r' || data[skipped] == '\n'))
    ++skipped;
  if (skipped > 0) return skipped;
  // An end may begin in what came before.
  const size_t before = head_.size();
  const size_t room = limits_.head_bytes + 1 - before;
  head_.append(data.substr(0, room));
  const size_t from = before < kHeadEnd.size() ? 0 : before - kHeadEnd.size() + 1;
  const size_t end = head_.find(kHeadEnd, from);
  for (size_t at = head_.find('\n', before); at < end; at = head_.find('\n', at + 1))
    if (at == 0 || head_[at - 1] != '\r') {
      fail(400, "a line of the request does not end with CR LF");
      return data.size();
    }
  if (end == head_.npos) {
    if (head_.size() > limits_.head_bytes)
      fail(431, fmt::format("the request line and headers are longer than {} bytes", limits_.head_bytes));
    return std::min(room, data.size());
  }
  head_.resize(end);
  parse_head();
  return end + kHeadEnd.size() - before;
}

void HttpParser::parse_head() {
  std::string_view rest = head_;
  bool first = true;
  while (!rest.empty() || first) {
    const size_t end = std::min(rest.find("\r\n"), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 2, rest.size()));
    if (!(first ? parse_request_line(line) : parse_header(line))) return;
    first = false;
  }
  understand_headers();
}

bool HttpParser::parse_request_line(std::string_view line) {
  const size_t a = line.find(' '), b = line.rfind(' ');
  if (a == line.npos || a == b || !is_token(line.substr(0, a))) {
    fail(400, "the first line of the request is not of the form METHOD TARGET HTTP/1.1");
    return false;
  }
  const std::string_view target = line.substr(a + 1, b - a - 1), version = line.substr(b + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    const bool other = version.starts_with("HTTP/");
    fail(other ? 505 : 400, other ? "only HTTP/1.0 and HTTP/1.1 are spoken here"
                                  : "the first line of the request does not end with HTTP/1.1");
    return false;
  }
  if (target.size() > limits_.target_bytes) {
    fail(414, fmt::format("the address has {} bytes, of which at most {} are accepted", target.size(),
                          limits_.target_bytes));
    return false;
  }
  const bool clean = std::ranges::none_of(
      target, [](char c) { return is_control(c) || c == ' ' || static_cast<unsigned char>(c) >= 0x80; });
  std::string_view path = target;
  for (const std::string_view scheme : {"http://", "https://"})  // the form that proxies are sent
    if (path.starts_with(scheme)) {
      path.remove_prefix(scheme.size());
      path.remove_prefix(std::min(path.find('/'), path.size()));
      if (path.empty()) path = "/";
    }
  if (!clean || (!path.starts_with('/') && path != "*")) {
    fail(400, "the address of the request is not a path");
    return false;
  }
  request_.method = line.substr(0, a);
  const size_t question = std::min(path.find('?'), path.size());
  request_.path = path.substr(0, question);
  request_.query = path.substr(std::min(question + 1, path.size()));
  request_.http_1_0 = version == "HTTP/1.0";
  return true;
}

bool HttpParser::parse_header(std::string_view line) {
  if (request_.headers.size() == limits_.headers) {
    fail(431, fmt::format("more than {} headers", limits_.headers));
    return false;
  }
  const size_t colon = line.find(':');
  // No blank before the colon and no folded lines: others may read these in another way.
  if (colon == line.npos || !is_token(line.substr(0, colon))) {
    fail(400, "a header is not of the form NAME: VALUE");
    return false;
  }
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (std::ranges::any_of(value, [](char c) { return is_control(c) && c != '\t'; })) {
    fail(400, "a header's value has control characters");
    return false;
  }
  request_.headers.emplace_back(lower_case(line.substr(0, colon)), value);
  return true;
}

void HttpParser::understand_headers() {
  const auto count = [&](std::string_view name) {
    return std::ranges::count(request_.headers, name,
                              [](const auto& h) { return std::string_view(h.first); });
  };
  if (count("host") > 1 || (count("host") == 0 && !request_.http_1_0))
    return fail(400, "a request has one Host header");
  request_.keep_alive = !request_.http_1_0;
  if (const auto connection = request_.header("connection")) {
    if (lists(*connection, "close")) request_.keep_alive = false;
    if (lists(*connection, "keep-alive")) request_.keep_alive = true;
  }
  if (const auto expect = request_.header("expect")) {
    if (!equal_ignoring_case(*expect, "100-continue"))
      return fail(417, "the only expectation that is met is 100-continue");
    wants_continue_ = !request_.http_1_0;
  }
  if (count("content-length") > 1 || count("transfer-encoding") > 1 ||
      (count("content-length") > 0 && count("transfer-encoding") > 0))
    return fail(400, "a request has one Content-Length or one Transfer-Encoding");
  understand_framing();
}

void HttpParser::understand_framing() {
  state_ = State::Body;
  if (const auto encoding = request_.header("transfer-encoding")) {
    if (request_.http_1_0) return fail(400, "HTTP/1.0 has no Transfer-Encoding");
    if (!equal_ignoring_case(*encoding, "chunked"))
      return fail(501, "the only Transfer-Encoding that is understood is chunked");
    chunked_ = true;
    return;
  }
  if (const auto length = request_.header("content-length")) {
    const auto [end, err] = std::from_chars(length->data(), length->data() + length->size(), remaining_);
    const bool digits =
        !length->empty() && std::ranges::all_of(*length, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || (err != std::errc() && err != std::errc::result_out_of_range))
      return fail(400, "Content-Length is not a number of bytes");
    if (err == std::errc::result_out_of_range || remaining_ > limits_.body_bytes)
      return fail(413, fmt::format("a body of {} bytes is more than the {} that are accepted", *length,
                                   limits_.body_bytes));
  }
  if (remaining_ == 0) state_ = State::Complete;
}

size_t HttpParser::feed_body(std::string_view data) {
  const size_t n = std::min<size_t>(data.size(), remaining_);
  request_.body.append(data.substr(0, n));
  remaining_ -= n;
  if (remaining_ == 0) state_ = State::Complete;
  return n;
}

bool HttpParser::take_line(std::string_view data, size_t& used) {
  const size_t end = data.find('\n', used);
  const size_t stop = end == data.npos ? data.size() : end + 1;
  line_.append(data.substr(used, stop - used));
  used = stop;
  if (line_.size() > kLongestChunkLine) {
    fail(400, fmt::format("a line between chunks is longer than {} bytes", kLongestChunkLine));
    return false;
  }
  if (end == data.npos) return false;
  if (!line_.ends_with("\r\n")) {
    fail(400, "a line between chunks does not end with CR LF");
    return false;
  }
  line_.resize(line_.size() - 2);
  return true;
}

void HttpParser::chunk_size() {
  const std::string_view digits = trimmed(std::string_view(line_).substr(0, line_.find(';')));
  const auto [end, err] = std::from_chars(digits.data(), digits.data() + digits.size(), remaining_, 16);
  if (err == std::errc::result_out_of_range) {
    remaining_ = limits_.body_bytes + 1;
  } else if (err != std::errc() || end != digits.data() + digits.size()) {
    return fail(400, "the size of a chunk is not a hexadecimal number");
  }
  if (remaining_ > limits_.body_bytes - request_.body.size())
    return fail(413,
                fmt::format("the body is longer than the {} bytes that are accepted", limits_.body_bytes));
  chunk_ = remaining_ == 0 ? Chunk::Trailer : Chunk::Data;
}

size_t HttpParser::feed_chunked(std::string_view data) {
  size_t used = 0;
  while (used < data.size() && state_ == State::Body) {
    if (chunk_ == Chunk::Data) {
      const size_t n = std::min<size_t>(data.size() - used, remaining_);
      request_.body.append(data.substr(used, n));
      used += n;
      remaining_ -= n;
      if (remaining_ == 0) chunk_ = Chunk::DataEnd;
      continue;
    }
    if (!take_line(data, used)) break;
    if (chunk_ == Chunk::Size) {
      chunk_size();
    } else if (chunk_ == Chunk::DataEnd) {
      if (!line_.empty()) fail(400, "a chunk is longer than its size says");
      chunk_ = Chunk::Size;
    } else if (line_.empty()) {
      state_ = State::Complete;
    } else if ((trailer_bytes_ += line_.size()) > limits_.head_bytes) {
      fail(431, "too many bytes of trailers");
    }
    line_.clear();
  }
  return used;
}

}  // namespace moeflux
