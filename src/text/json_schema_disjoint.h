// oneOf: whether the branches exclude each other, which a grammar cannot do for them.
#pragma once

#include "text/json_schema_facts.h"

namespace moeflux {

// True where it is certain that no value satisfies both.
bool are_disjoint(SchemaDocument& document, SchemaFacts& facts, const Conjunction& a, const Conjunction& b);

}  // namespace moeflux
