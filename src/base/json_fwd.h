// Json by name only: for headers that pass it along, since the library itself is slow to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moeflux {

using Json = nlohmann::json;
// Keeps the members of an object in their order.
using OrderedJson = nlohmann::ordered_json;

}  // namespace moeflux
