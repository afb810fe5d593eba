// Unicode normalisation form C: characters that are written as a letter and its marks become one character
// where there is one, and marks get one order. Knows the characters of the version of Unicode that the tables
// are of.
#pragma once

#include <string>
#include <string_view>

namespace moeflux {

// Whether nfc(text) could differ from the text; never wrong where it says no.
bool may_need_nfc(std::string_view text);

std::string nfc(std::string_view text);  // of well-formed text

}  // namespace moeflux
