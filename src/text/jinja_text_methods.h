// Work on strings that methods and filters share. Offsets are in bytes, texts are valid UTF-8.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace moeflux::jinja {

enum class Side : uint8_t { Both, Left, Right };
// Without the characters of `which` (white space, where it is absent) at its ends.
std::string_view strip(std::string_view text, std::optional<std::string_view> which, Side side);
// The lines of a text, without their ends unless `keep_ends`.
std::shared_ptr<ListObject> split_lines(Meter& meter, std::string_view text, bool keep_ends, bool is_markup);
Value replace(Meter& meter, std::string_view text, std::string_view old, std::string_view replacement,
              Integer count, bool is_markup);
Value center(Meter& meter, const Value& text, Integer width, std::string_view fill);
// Whether there is a character with case, and all that have one are lower (upper) case.
bool is_all_lower(std::string_view text);
bool is_all_upper(std::string_view text);

}  // namespace moeflux::jinja
