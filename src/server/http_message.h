// Requests and responses of HTTP/1.1 as plain values, and the limits within which they are accepted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moeflux {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // as sent: GET, POST, ...
  std::string path;     // without the query; as sent, not decoded
  std::string query;    // after the '?', as sent
  HttpHeaders headers;  // names in lower case
  std::string body;
  bool http_1_0 = false;
  bool keep_alive = true;  // what the client wants

  // The value of a header (its name in lower case), or nothing. Of several, the first.
  std::optional<std::string_view> header(std::string_view name) const;
  std::optional<std::string> query_value(std::string_view name) const;  // decoded
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  HttpHeaders headers = {};  // further ones
};

struct HttpLimits {
  size_t target_bytes = 8 << 10;
  size_t head_bytes = 64 << 10;  // request line and headers
  size_t headers = 100;
  size_t body_bytes = 32 << 20;
  size_t connections = 1024;
  size_t all_body_bytes = size_t{256} << 20;  // of all requests that are being received or answered
  size_t stream_bytes = 1 << 20;              // that a client may leave unread before it is dropped
  std::chrono::milliseconds idle{75'000};     // between requests of a connection
  std::chrono::milliseconds head{15'000};     // from a request's first byte to the end of its headers
  std::chrono::milliseconds body{120'000};    // ... and from there to the end of its body
  std::chrono::milliseconds write{30'000};    // without a byte that the client takes
};

// Why a request cannot be answered as it was meant.
struct HttpFault {
  int status = 400;
  std::string message;
};

std::string_view reason_phrase(int status);

// "a%2Fb" to "a/b"; nothing where it is ill-formed.
std::optional<std::string> percent_decoded(std::string_view text);
std::string lower_case(std::string_view ascii);
bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace moeflux
