// JSON as it goes to clients: on one line, always valid UTF-8, and without the characters at which some
// clients cut lines; and events of a stream made of it.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace moeflux {

std::string json_text(const OrderedJson& json);
std::string json_text(const Json& json);

// One server-sent event. Without a name, none is written.
std::string sse_event(const OrderedJson& data, std::string_view name = "");

}  // namespace moeflux
