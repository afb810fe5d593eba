// Which variables a scope hides. A scope that assigns to a name before it reads it hides what the caller gave
// under that name from its beginning, not from the assignment on: what a macro or a loop in it reads before
// the assignment is undefined. This is how jinja2 resolves names when it compiles a template; rendering has
// to follow.
#pragma once

#include "text/jinja_ast.h"

namespace moeflux::jinja {

void find_hidden_names(Tree& tree);

}  // namespace moeflux::jinja
