#include "support/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace moeflux::test {
namespace {

constexpr int kSeconds = 240;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

Json ClientResponse::json() const { return parse_json(body, "the answer"); }

std::vector<ClientResponse::Event> ClientResponse::events() const {
  std::vector<Event> all;
  std::string_view rest = body;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find("\n\n"), rest.size());
    std::string_view block = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 2, rest.size()));
    Event event;
    bool has_data = false;
    while (!block.empty()) {
      const size_t stop = std::min(block.find('\n'), block.size());
      const std::string_view line = block.substr(0, stop);
      block.remove_prefix(std::min(stop + 1, block.size()));
      if (line.starts_with("event: ")) event.name = line.substr(7);
      if (line.starts_with("data: ")) {
        event.data += line.substr(6);
        has_data = true;
      }
    }
    if (has_data) all.push_back(event);
  }
  return all;
}

HttpClient::HttpClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval wait{.tv_sec = kSeconds, .tv_usec = 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
  int failed = 0;
  do failed = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  while (failed && errno == EINTR);  // io_uring interrupts the thread that has made it; connecting goes on
  if (failed && errno != EISCONN)
    throw std::runtime_error(fmt::format("connect to port {}: {}", port, std::strerror(errno)));
}

bool HttpClient::try_send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void HttpClient::send(std::string_view bytes) {
  if (!try_send(bytes)) throw std::runtime_error("the server does not take what it is sent");
}

void HttpClient::finish_sending() { shutdown(fd_.get(), SHUT_WR); }

std::string HttpClient::receive_some() {
  if (!buffer_.empty()) return std::exchange(buffer_, {});
  std::array<char, 16384> bytes;
  ssize_t n = 0;
  do n = recv(fd_.get(), bytes.data(), bytes.size(), 0);
  while (n < 0 && errno == EINTR);  // io_uring interrupts the thread that has made it
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) throw std::runtime_error("no answer came in time");
  return n <= 0 ? "" : std::string(bytes.data(), static_cast<size_t>(n));
}

std::string HttpClient::receive_until(std::string_view end) {
  std::string all;
  for (;;) {
    const std::string piece = receive_some();
    all += piece;
    const size_t at = all.find(end);
    if (at != all.npos) {
      buffer_ = all.substr(at + end.size());
      all.resize(at + end.size());
      return all;
    }
    if (piece.empty()) return all;
  }
}

std::string HttpClient::receive_all() {
  std::string all;
  for (std::string piece = receive_some(); !piece.empty(); piece = receive_some()) all += piece;
  return all;
}

ClientResponse HttpClient::response(bool head_only) {
  ClientResponse out;
  const std::string head = receive_until("\r\n\r\n");
  if (!head.starts_with("HTTP/1.1 ")) return out;
  out.status = std::stoi(head.substr(9, 3));
  for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
    const size_t end = head.find("\r\n", at), colon = head.find(": ", at);
    out.headers[lower(head.substr(at, colon - at))] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (head_only || out.status == 100 || out.status == 204 || out.status == 304) {
    out.whole = true;
    return out;
  }
  if (out.headers.contains("transfer-encoding")) {
    for (;;) {
      const std::string line = receive_until("\r\n");
      if (!line.ends_with("\r\n")) return out;
      const size_t size = std::stoul(line, nullptr, 16);
      std::string data;
      while (data.size() < size + 2) {
        const std::string piece = receive_some();
        if (piece.empty()) return out;
        data += piece;
      }
      buffer_ = data.substr(size + 2) + buffer_;
      out.body += data.substr(0, size);
      if (size == 0) break;
    }
    out.whole = true;
  } else if (out.headers.contains("content-length")) {
    const size_t size = std::stoul(out.headers["content-length"]);
    while (out.body.size() < size) {
      const std::string piece = receive_some();
      if (piece.empty()) return out;
      out.body += piece;
    }
    buffer_ = out.body.substr(size) + buffer_;
    out.body.resize(size);
    out.whole = true;
  } else {
    out.body = receive_all();
    out.whole = true;
  }
  return out;
}

ClientResponse HttpClient::request(const std::string& method, const std::string& path,
                                   const std::string& body, const std::string& headers) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}", method, path, headers);
  if (!body.empty() || method == "POST")
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  send(text + "\r\n" + body);
  return response(method == "HEAD");
}

ClientResponse HttpClient::get(const std::string& path, const std::string& headers) {
  return request("GET", path, "", headers);
}

ClientResponse HttpClient::post(const std::string& path, const std::string& body,
                                const std::string& headers) {
  return request("POST", path, body, headers);
}

}  // namespace moeflux::test
