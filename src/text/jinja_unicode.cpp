#include "text/jinja_unicode.h"
#include "text/utf8.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "text/jinja_unicode_tables.h"

namespace moeflux::jinja {
namespace {

using tables::Mapping;
using tables::Range;
using tables::Special;

bool contains(std::span<const Range> ranges, char32_t c) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                      [](char32_t value, const Range& r) { return value < r.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

bool is_ascii_lower(char32_t c) { return c >= 'a' && c <= 'z'; }
bool is_ascii_upper(char32_t c) { return c >= 'A' && c <= 'Z'; }

struct CaseTable {
  std::span<const Mapping> mappings;
  std::span<const Special> specials;
};

constexpr CaseTable kLowerCase{tables::kToLower, tables::kToLowerSpecial};
constexpr CaseTable kUpperCase{tables::kToUpper, tables::kToUpperSpecial};
constexpr CaseTable kTitleCase{tables::kToTitle, tables::kToTitleSpecial};
constexpr CaseTable kFoldedCase{tables::kToFold, tables::kToFoldSpecial};

void append_mapped(std::string& to, const CaseTable& table, char32_t c) {
  const auto special = std::lower_bound(table.specials.begin(), table.specials.end(), c,
                                        [](const Special& s, char32_t value) { return s.from < value; });
  if (special != table.specials.end() && special->from == c) {
    for (const uint32_t part : special->to)
      if (part) append_code_point(to, part);
    return;
  }
  const auto after = std::upper_bound(table.mappings.begin(), table.mappings.end(), c,
                                      [](char32_t value, const Mapping& m) { return value < m.first; });
  if (after != table.mappings.begin()) {
    const Mapping& m = *std::prev(after);
    if (c <= m.last && (c - m.first) % m.step == 0) {
      append_code_point(to, static_cast<char32_t>(static_cast<int32_t>(c) + m.delta));
      return;
    }
  }
  append_code_point(to, c);
}

constexpr char32_t kCapitalSigma = 0x3a3, kFinalSigma = 0x3c2;

bool is_cased(char32_t c) { return is_lower(c) || is_upper(c) || is_title(c); }
bool is_ignorable(char32_t c) { return contains(tables::kIgnorable, c); }

// How far the neighbours of a sigma are looked for: a text of characters that case ignores costs no quadratic
// time.
constexpr size_t kSigmaWindowBytes = 256;

// A capital sigma ends a word if a cased character stands before it and none after it; characters that case
// ignores do not count.
bool is_final_sigma(std::string_view text, size_t at, size_t after) {
  const size_t first = at > kSigmaWindowBytes ? at - kSigmaWindowBytes : 0;
  bool cased_before = false;
  while (at > first) {
    while (at > 0 && (text[--at] & 0xc0) == 0x80) continue;
    size_t next = at;
    const char32_t c = next_code_point(text, next);
    if (is_ignorable(c)) continue;
    cased_before = is_cased(c);
    break;
  }
  if (!cased_before) return false;
  const size_t last = std::min(text.size(), after + kSigmaWindowBytes);
  while (after < last) {
    const char32_t c = next_code_point(text, after);
    if (!is_ignorable(c)) return !is_cased(c);
  }
  return true;
}

void append_lower(std::string& to, std::string_view text, size_t at, size_t after, char32_t c) {
  if (c == kCapitalSigma && is_final_sigma(text, at, after))
    append_code_point(to, kFinalSigma);
  else
    append_mapped(to, kLowerCase, c);
}

// convert(out, at, after, c) appends what becomes of the code point c that lies in [at, after).
template <class Convert>
std::string convert_each(std::string_view text, Convert convert) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    convert(out, begin, at, c);
  }
  return out;
}

// Length of the sequence that a lead byte announces; 0 for a byte that cannot lead.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

bool is_valid_sequence(std::string_view text, size_t at, size_t length) {
  if (at + length > text.size()) return false;
  for (size_t i = 1; i < length; ++i)
    if ((text[at + i] & 0xc0) != 0x80) return false;
  const auto lead = static_cast<unsigned char>(text[at]);
  const unsigned char second = length > 1 ? static_cast<unsigned char>(text[at + 1]) : 0;
  if (lead == 0xe0) return second >= 0xa0;
  if (lead == 0xed) return second < 0xa0;
  if (lead == 0xf0) return second >= 0x90;
  if (lead == 0xf4) return second < 0x90;
  return true;
}

}  // namespace

bool count_code_points(std::string_view text, size_t& count) {
  count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const size_t length = sequence_length(static_cast<unsigned char>(text[at]));
    if (length == 0 || !is_valid_sequence(text, at, length)) return false;
    at += length;
  }
  return true;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  if (lead < 0x80) return lead;
  const int n_more = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
  char32_t c = lead & (0x3f >> n_more);
  for (int i = 0; i < n_more && at < text.size(); ++i) c = c << 6 | (text[at++] & 0x3f);
  return c;
}

void append_code_point(std::string& to, char32_t c) { append_utf8(to, c); }

size_t byte_offset(std::string_view text, size_t index, size_t from) {
  while (index > 0 && from < text.size()) {
    ++from;
    while (from < text.size() && (text[from] & 0xc0) == 0x80) ++from;
    --index;
  }
  return from;
}

void append_hex(std::string& to, uint32_t value, int n_digits, bool upper) {
  const char* digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  for (int i = n_digits - 1; i >= 0; --i) to += digits[value >> (4 * i) & 15];
}

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return text.npos;
  if (wanted.empty()) return from;
  const void* found = ::memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : text.npos;
}

size_t find_last_text(std::string_view text, std::string_view wanted) {
  constexpr size_t kShort = 16;
  if (wanted.size() <= kShort) return text.rfind(wanted);
  const std::string backwards(text.rbegin(), text.rend()), wanted_backwards(wanted.rbegin(), wanted.rend());
  const size_t at = find_text(backwards, wanted_backwards);
  return at == text.npos ? at : text.size() - at - wanted.size();
}

bool is_alpha(char32_t c) {
  return c < 0x80 ? is_ascii_lower(c) || is_ascii_upper(c) : contains(tables::kAlpha, c);
}
bool is_decimal(char32_t c) { return contains(tables::kDecimal, c); }
bool is_digit(char32_t c) { return contains(tables::kDigit, c); }
bool is_numeric(char32_t c) { return contains(tables::kNumeric, c); }
bool is_printable(char32_t c) { return c < 0x7f ? c >= 0x20 : !contains(tables::kUnprintable, c); }
bool is_space(char32_t c) {
  return c < 0x80 ? c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) : contains(tables::kSpace, c);
}
bool is_lower(char32_t c) { return c < 0x80 ? is_ascii_lower(c) : contains(tables::kLower, c); }
bool is_upper(char32_t c) { return c < 0x80 ? is_ascii_upper(c) : contains(tables::kUpper, c); }
bool is_title(char32_t c) { return contains(tables::kTitle, c); }
bool is_identifier_start(char32_t c) { return contains(tables::kIdentifierStart, c); }
bool is_identifier_continue(char32_t c) { return contains(tables::kIdentifierContinue, c); }

std::string to_lower(std::string_view text) {
  return convert_each(text, [text](std::string& out, size_t at, size_t after, char32_t c) {
    append_lower(out, text, at, after, c);
  });
}

std::string to_upper(std::string_view text) {
  return convert_each(
      text, [](std::string& out, size_t, size_t, char32_t c) { append_mapped(out, kUpperCase, c); });
}

std::string to_folded(std::string_view text) {
  return convert_each(
      text, [](std::string& out, size_t, size_t, char32_t c) { append_mapped(out, kFoldedCase, c); });
}

std::string to_capitalized(std::string_view text) {
  return convert_each(text, [text](std::string& out, size_t at, size_t after, char32_t c) {
    if (at == 0)
      append_mapped(out, kTitleCase, c);
    else
      append_lower(out, text, at, after, c);
  });
}

std::string to_titled(std::string_view text) {
  bool inside_word = false;
  return convert_each(text, [text, &inside_word](std::string& out, size_t at, size_t after, char32_t c) {
    if (inside_word)
      append_lower(out, text, at, after, c);
    else
      append_mapped(out, kTitleCase, c);
    inside_word = is_cased(c);
  });
}

std::string to_swapped(std::string_view text) {
  return convert_each(text, [text](std::string& out, size_t at, size_t after, char32_t c) {
    if (is_upper(c))
      append_lower(out, text, at, after, c);
    else if (is_lower(c))
      append_mapped(out, kUpperCase, c);
    else
      append_code_point(out, c);
  });
}

}  // namespace moeflux::jinja
