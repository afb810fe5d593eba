// Json by name only: for headers that pass it along, since the library itself is slow to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moeflux {

using Json = nlohmann::json;

}  // namespace moeflux
