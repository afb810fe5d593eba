// JSON schemas as grammars: each text that the grammar matches is a document that the schema allows. The
// reverse is not promised (keys come in the schema's order, white space is bounded, numbers have so many
// digits); a keyword that cannot be enforced is refused with its place and the reason, never ignored.
// docs/STRUCTURED_OUTPUT.md lists both.
#pragma once

#include <string_view>

#include "base/json_fwd.h"
#include "text/grammar.h"

namespace moeflux {

struct JsonSchemaOptions {
  enum class Spaces {
    None,
    Single,  // one may stand after '{', '[', ',' and ':' and before '}' and ']'
  };
  Spaces spaces = Spaces::Single;
};

// Throws Error{InvalidArgument} for what is no schema and Error{Unsupported} for what cannot be expressed.
Grammar compile_json_schema(std::string_view text, const JsonSchemaOptions& options = {});
// The same as rules, to be part of a larger grammar.
GrammarRules json_schema_rules(const OrderedJson& schema, const JsonSchemaOptions& options = {});

}  // namespace moeflux
