// JSON schemas at random, and a validator that shares nothing with the code that compiles them.
#pragma once

#include <cstdint>

#include "base/json.h"

namespace moeflux::test {

// Every keyword that schemas are compiled with; nested and recursive. Some cannot be compiled.
OrderedJson random_schema(uint32_t seed);

// Knows the keywords of random_schema() only.
bool satisfies(const Json& schema, const Json& value);

}  // namespace moeflux::test
