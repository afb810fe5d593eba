#include "server/api_error.h"

#include "server/json_text.h"

namespace moeflux {
namespace {

const char* openai_type(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

void refuse_field(const std::string& param, const std::string& why) {
  throw ApiError(400,
                 fmt::format("'{}' is not supported by this server{}{}", param, why.empty() ? "" : ": ", why),
                 param, "unsupported_parameter");
}

ApiError request_error(const Error& error, const std::string& param) {
  return {400, error.what(), param, error.code == Errc::Unsupported ? "unsupported_value" : "invalid_value"};
}

ApiError engine_error(const Error& error) {
  if (error.code == Errc::InvalidArgument || error.code == Errc::Unsupported) return request_error(error);
  if (error.code == Errc::Busy) {
    ApiError busy(429, error.what(), "", "rate_limit_exceeded");
    busy.retry_after_s = 1;
    return busy;
  }
  if (error.code == Errc::OutOfMemory) return {503, error.what(), "", "out_of_memory"};
  return {500, error.what(), "", "engine_error"};
}

ApiStyle style_of(std::string_view path) {
  const bool anthropic = path == "/v1/messages" || path.starts_with("/v1/messages/");
  return anthropic ? ApiStyle::Anthropic : ApiStyle::OpenAi;
}

OrderedJson error_json(const ApiError& error, ApiStyle style, const std::string& request_id) {
  if (style == ApiStyle::Anthropic) {
    OrderedJson json = {{"type", "error"},
                        {"error", {{"type", anthropic_type(error.status)}, {"message", error.what()}}}};
    if (!request_id.empty()) json["request_id"] = request_id;
    return json;
  }
  const auto or_null = [](const std::string& text) {
    return text.empty() ? OrderedJson() : OrderedJson(text);
  };
  OrderedJson inner = {{"message", error.what()},
                       {"type", openai_type(error.status)},
                       {"param", or_null(error.param)},
                       {"code", or_null(error.code)}};
  inner.update(error.more);
  return {{"error", inner}};
}

HttpResponse error_response(const ApiError& error, ApiStyle style, const std::string& request_id) {
  HttpResponse response{.status = error.status,
                        .body = json_text(error_json(error, style, request_id)) + "\n"};
  if (error.retry_after_s) response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after_s));
  return response;
}

}  // namespace moeflux
