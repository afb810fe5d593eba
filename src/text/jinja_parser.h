// Source to tree. Accepts what Python's jinja2 accepts with the settings of chat templates (loop controls,
// the generation tag); what needs other templates (include, import, extends) is refused by name.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace moeflux::jinja {

Tree parse(std::string_view source, Meter& meter);  // throws SyntaxRefusal; the meter counts the literals

}  // namespace moeflux::jinja
