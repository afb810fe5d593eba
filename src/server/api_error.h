// Why a request is refused or has failed, and how each API says it.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "server/http_message.h"

namespace moeflux {

struct ApiError : std::runtime_error {
  ApiError(int http_status, const std::string& message, std::string parameter = "",
           std::string short_code = "")
      : std::runtime_error(message),
        status(http_status),
        param(std::move(parameter)),
        code(std::move(short_code)) {}

  int status;
  std::string param;  // the field at fault, such as messages[0].content; empty: none
  std::string code;   // a word for programs; empty: none
  std::optional<int> retry_after_s = {};
  OrderedJson more = OrderedJson::object();  // further members of the error object
};

// A field that is understood but has no effect here that could be honoured.
[[noreturn]] void refuse_field(const std::string& param, const std::string& why = "");

// What went wrong while a request was read (the client's doing), and while it was computed.
ApiError request_error(const Error& error, const std::string& param = "");
ApiError engine_error(const Error& error);

enum class ApiStyle { OpenAi, Anthropic };
ApiStyle style_of(std::string_view path);  // Anthropic: /v1/messages and below

OrderedJson error_json(const ApiError& error, ApiStyle style, const std::string& request_id);
HttpResponse error_response(const ApiError& error, ApiStyle style, const std::string& request_id);

}  // namespace moeflux
