// Numbers from text, as Python's int() and float() read them.
#include <charconv>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

std::string_view stripped(std::string_view text) {
  size_t begin = 0, end = text.size();
  while (begin < end) {
    size_t next = begin;
    if (!is_space(next_code_point(text, next))) break;
    begin = next;
  }
  while (end > begin) {
    size_t last = end - 1;
    while (last > begin && (text[last] & 0xc0) == 0x80) --last;
    size_t next = last;
    if (!is_space(next_code_point(text, next))) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

// 0x, 0o and 0b: taken off where the base allows it; a base of 0 becomes the one that they name.
std::string_view without_prefix(std::string_view digits, int& base) {
  if (digits.size() < 2 || digits[0] != '0') {
    if (base == 0) base = 10;
    return digits;
  }
  const char letter = static_cast<char>(digits[1] | 0x20);
  const int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (named == 0 || (base != 0 && base != named)) {
    if (base == 0) base = 10;
    return digits;
  }
  base = named;
  digits.remove_prefix(2);
  if (digits.starts_with('_')) digits.remove_prefix(1);
  return digits;
}

// Drops underscores that stand between digits; false where one stands elsewhere.
bool drop_underscores(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto is_digit_at = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) return false;
  }
  return true;
}

bool is_plain_float(std::string_view text) {
  for (const char c : text)
    if (!((c >= '0' && c <= '9') || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-')) return false;
  return true;
}

}  // namespace

std::optional<Integer> parse_integer(std::string_view text, int base) {
  if (base != 0 && (base < 2 || base > 36)) refuse("the base of int() is 0 or from 2 to 36");
  text = stripped(text);
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  const bool any_base = base == 0;
  const std::string_view digits = without_prefix(text, base);
  if (digits.empty()) return {};
  Integer value = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] == '_') {
      if (i == 0 || i + 1 == digits.size() || digits[i - 1] == '_') return {};
      continue;
    }
    const int digit = digit_of(digits[i]);
    if (digit >= base) return {};
    value = checked_add(checked_multiply(value, base), digit);
  }
  if (any_base && base == 10 && digits[0] == '0' && value != 0) return {};
  return is_negative ? -value : value;
}

std::optional<double> parse_float(std::string_view text) {
  text = stripped(text);
  std::string digits;
  if (!drop_underscores(text, digits)) return {};
  std::string_view body = digits;
  const bool is_negative = body.starts_with('-');
  if (is_negative || body.starts_with('+')) body.remove_prefix(1);
  const std::string lower = to_lower(body);
  if (lower == "inf" || lower == "infinity") return is_negative ? -HUGE_VAL : HUGE_VAL;
  if (lower == "nan") return std::nan("");
  if (body.empty() || body[0] == '+' || body[0] == '-' || !is_plain_float(body)) return {};
  double value = 0;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), value);
  if (end != body.data() + body.size() || error == std::errc::invalid_argument) return {};
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(body).c_str(), nullptr);
  return is_negative ? -value : value;
}

}  // namespace moeflux::jinja
