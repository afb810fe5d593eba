// Strings of JSON: how text is spelled inside quotes, and the formats that schemas name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/grammar_expression.h"

namespace moeflux {

// One character of a string in any of its spellings: as it is, after a backslash, or as \uXXXX (two of them
// for what lies above U+FFFF).
Expression string_character();

// Text in its one canonical spelling: escaped is only what must be, as shortly as can be.
std::string spelled(std::string_view text);
std::string quoted_text(std::string_view text);  // the same between its quotes
Expression spelled(const Expression& text);
ByteGraph spelled(const ByteGraph& text);

// The pattern of a format; empty where it is not known.
std::optional<std::string> format_pattern(std::string_view format);
std::string known_formats();  // for messages

}  // namespace moeflux
