#include "server/access.h"

#include <algorithm>

namespace moeflux {
namespace {

constexpr size_t kLeastKeyBytes = 8;

std::optional<std::string_view> key_of(const HttpRequest& request) {
  if (const auto authorization = request.header("authorization")) {
    constexpr std::string_view kBearer = "bearer ";
    if (authorization->size() > kBearer.size() &&
        equal_ignoring_case(authorization->substr(0, kBearer.size()), kBearer))
      return authorization->substr(kBearer.size());
  }
  return request.header("x-api-key");
}

bool is_known(const AccessRules& rules, std::string_view key) {
  bool known = false;  // all are looked at: which one it is takes no less time than none
  for (const std::string& one : rules.keys) known |= equal_in_constant_time(one, key);
  return known;
}

std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, std::min(host.find(']') + 1, host.size()));
  return host.substr(0, std::min(host.find(':'), host.size()));
}

bool is_loopback_name(std::string_view host) {
  const std::string name = lower_case(without_port(host));
  return name == "localhost" || name.ends_with(".localhost") || name == "[::1]" || name.starts_with("127.");
}

bool may_cross(const AccessRules& rules, std::string_view origin) {
  return std::ranges::any_of(rules.cors, [&](const std::string& one) { return one == "*" || one == origin; });
}

// A page of this server itself.
bool is_own_origin(std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  return scheme != origin.npos && equal_ignoring_case(origin.substr(scheme + 3), host);
}

}  // namespace

std::vector<std::string> read_api_keys(const std::string& text, const std::string& where) {
  std::vector<std::string> keys;
  std::string_view rest = text;
  for (size_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view key = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    key.remove_prefix(std::min(key.find_first_not_of(" \t\r"), key.size()));
    key = key.substr(0, key.find_last_not_of(" \t\r") + 1);
    if (key.empty() || key.starts_with('#')) continue;
    if (key.size() < kLeastKeyBytes)
      fail(Errc::InvalidArgument, "{}: the key in line {} has {} bytes, want at least {}", where, line,
           key.size(), kLeastKeyBytes);
    keys.emplace_back(key);
  }
  if (keys.empty()) fail(Errc::InvalidArgument, "{}: there is no key", where);
  return keys;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  volatile unsigned difference = static_cast<unsigned>(a.size() != b.size());
  for (size_t i = 0; i < b.size(); ++i) {
    const char other = a.empty() ? '\0' : a[i % a.size()];
    difference = difference | static_cast<unsigned char>(b[i] ^ other);
  }
  return difference == 0;
}

std::optional<ApiError> refusal_of(const AccessRules& rules, const HttpRequest& request, bool is_public) {
  const std::string_view host = request.header("host").value_or("");
  // Otherwise a page anywhere could give its own name this machine's address, and ask in its user's place.
  if (rules.only_loopback_names && !host.empty() && !is_loopback_name(host) &&
      std::ranges::find(rules.host_names, lower_case(without_port(host))) == rules.host_names.end())
    return ApiError(
        421, fmt::format("this server does not answer to the name '{}' (--allow-host)", without_port(host)),
        "", "wrong_host");
  const auto origin = request.header("origin");
  const bool reads = request.method == "GET" || request.method == "HEAD" || request.method == "OPTIONS";
  if (origin && !reads && !is_own_origin(*origin, host) && !may_cross(rules, *origin))
    return ApiError(403, fmt::format("pages of '{}' may not ask this server (--cors)", *origin), "",
                    "wrong_origin");
  if (is_public || rules.keys.empty() || request.method == "OPTIONS") return {};
  const auto key = key_of(request);
  if (key && is_known(rules, *key)) return {};
  return ApiError(401, key ? "this API key is not valid" : "an API key is needed: Authorization: Bearer KEY",
                  "", "invalid_api_key");
}

HttpHeaders cors_headers(const AccessRules& rules, const HttpRequest& request) {
  const auto origin = request.header("origin");
  if (!origin || !may_cross(rules, *origin)) return {};
  HttpHeaders headers = {{"Access-Control-Allow-Origin", std::string(*origin)},
                         {"Vary", "Origin"},
                         {"Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After"}};
  if (request.method != "OPTIONS") return headers;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
  headers.emplace_back("Access-Control-Allow-Headers",
                       std::string(request.header("access-control-request-headers").value_or("*")));
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

}  // namespace moeflux
