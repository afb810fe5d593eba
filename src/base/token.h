// The number of a token in a model's vocabulary.
#pragma once

#include <cstdint>

namespace moeflux {

using Token = uint32_t;

}  // namespace moeflux
