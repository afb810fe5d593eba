// Standard input and output as whole things: all of it, or an Error.
#pragma once

#include <string>
#include <string_view>

namespace moeflux {

std::string read_standard_input();
void write_out(std::string_view text);  // to standard output

}  // namespace moeflux
