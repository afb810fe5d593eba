// Who may ask: API keys, and what keeps the pages of strangers in a browser on the same machine out. Pure
// rules over requests; keys are compared in constant time and never printed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api_error.h"

namespace moeflux {

struct AccessRules {
  std::vector<std::string> keys = {};        // empty: nobody needs one
  std::vector<std::string> cors = {};        // origins whose pages may ask; "*": all; empty: none
  bool only_loopback_names = false;          // the Host header must name this machine, or be one of
  std::vector<std::string> host_names = {};  // these
};

// One key per line; blank lines and lines that begin with # are left out. Throws Error.
std::vector<std::string> read_api_keys(const std::string& text, const std::string& where);

bool equal_in_constant_time(std::string_view a, std::string_view b);

// Why a request may not be answered. `is_public`: it needs no key.
std::optional<ApiError> refusal_of(const AccessRules& rules, const HttpRequest& request, bool is_public);

// The headers by which a browser lets the page of another origin read the answer; empty: it does not.
HttpHeaders cors_headers(const AccessRules& rules, const HttpRequest& request);

}  // namespace moeflux
