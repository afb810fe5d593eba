// Characters as Python's str sees them: code points in UTF-8, their classes and their case. Text that reaches
// these functions is valid UTF-8 (make_string checks it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moeflux::jinja {

// Code points in valid UTF-8; nothing where the text is not valid (overlong, surrogate, truncated, too
// large).
bool count_code_points(std::string_view text, size_t& count);

// The code point that starts at `at`, which moves past it.
char32_t next_code_point(std::string_view text, size_t& at);
void append_code_point(std::string& to, char32_t c);
void append_hex(std::string& to, uint32_t value, int n_digits, bool upper = false);

// Byte offset of code point `index` (or the end of the text, where there are fewer), counted from byte
// `from`.
size_t byte_offset(std::string_view text, size_t index, size_t from = 0);

// Where `wanted` stands, from `from` on, or last; npos where it does not. In time that grows with the sum of
// the lengths, whatever the texts are.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);
size_t find_last_text(std::string_view text, std::string_view wanted);

bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_printable(char32_t c);
bool is_space(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_title(char32_t c);  // a digraph such as U+01C5
bool is_identifier_start(char32_t c);
bool is_identifier_continue(char32_t c);

std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);
std::string to_folded(std::string_view text);
std::string to_capitalized(std::string_view text);
std::string to_titled(std::string_view text);
std::string to_swapped(std::string_view text);

}  // namespace moeflux::jinja
