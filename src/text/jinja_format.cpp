// Formatting with % and with braces, as Python's str does it.
#include <algorithm>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

constexpr size_t kMaxWidth = 100'000, kMaxPrecision = 1000;

// [[fill]align][sign][#][0][width][grouping][.precision][type]
struct Specification {
  char32_t fill = ' ';
  char align = 0, sign = '-', grouping = 0, type = 0;
  bool alternate = false, zero = false;
  size_t width = 0;
  std::optional<size_t> precision;
};

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_align(char32_t c) { return c == '<' || c == '>' || c == '=' || c == '^'; }

size_t read_count(std::string_view text, size_t& at, size_t most) {
  size_t count = 0;
  while (at < text.size() && is_digit_char(text[at])) {
    count = count * 10 + static_cast<size_t>(text[at++] - '0');
    if (count > most) refuse("a width or precision of a format is larger than {}", most);
  }
  return count;
}

Specification parse_specification(std::string_view text) {
  Specification s;
  size_t at = 0;
  const auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
  if (!text.empty()) {
    size_t after = 0;
    const char32_t first = next_code_point(text, after);
    if (after < text.size() && is_align(static_cast<unsigned char>(text[after]))) {
      s.fill = first;
      s.align = text[after];
      at = after + 1;
    } else if (is_align(first)) {
      s.align = text[at++];
    }
  }
  if (peek() == '+' || peek() == '-' || peek() == ' ') s.sign = text[at++];
  if (peek() == '#') {
    s.alternate = true;
    ++at;
  }
  if (peek() == '0') {
    if (!s.align) s.fill = '0';
    s.zero = !s.align;
    ++at;
  }
  s.width = read_count(text, at, kMaxWidth);
  if (peek() == ',' || peek() == '_') s.grouping = text[at++];
  if (peek() == '.') {
    ++at;
    if (!is_digit_char(peek())) refuse("a format lacks the digits of its precision");
    s.precision = read_count(text, at, kMaxPrecision);
  }
  if (at < text.size()) s.type = text[at++];
  if (at != text.size()) refuse("'{}' is not a valid format", text);
  return s;
}

size_t characters_in(std::string_view text) {
  size_t n = 0;
  count_code_points(text, n);
  return n;
}

// prefix (sign, 0x) and body, padded between or around.
std::string pad(const Specification& s, const std::string& prefix, const std::string& body,
                char default_align) {
  const size_t n = characters_in(prefix) + characters_in(body);
  if (n >= s.width) return prefix + body;
  const size_t n_fill = s.width - n;
  const char align = s.align ? s.align : default_align;
  const size_t n_before = align == '<' ? 0 : align == '^' ? n_fill / 2 : n_fill;
  std::string before, after;
  for (size_t i = 0; i < n_before; ++i) append_code_point(before, s.fill);
  for (size_t i = n_before; i < n_fill; ++i) append_code_point(after, s.fill);
  return align == '=' ? prefix + before + body : before + prefix + body + after;
}

std::string grouped(const std::string& digits, char separator, size_t size) {
  if (!separator) return digits;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// Groups the whole part, with zeros in front as far as the width wants them.
std::string pad_number(const Specification& s, const std::string& prefix, std::string whole,
                       const std::string& rest, size_t group_size) {
  if (s.grouping && s.align == '=' && s.fill == '0')
    while (prefix.size() + grouped(whole, s.grouping, group_size).size() + rest.size() < s.width) {
      std::string longer = "0" + whole;
      if (prefix.size() + grouped(longer, s.grouping, group_size).size() + rest.size() > s.width + 1) break;
      whole = std::move(longer);
    }
  return pad(s, prefix, grouped(whole, s.grouping, group_size) + rest, '>');
}

std::string sign_of(bool is_negative, char sign) {
  if (is_negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

std::string digits_of(unsigned __int128 value, unsigned base, bool upper) {
  const char* letters = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out += letters[static_cast<size_t>(value % base)];
    value /= base;
  } while (value != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

unsigned __int128 magnitude(Integer i) {
  return i < 0 ? -static_cast<unsigned __int128>(i) : static_cast<unsigned __int128>(i);
}

std::string format_text(const Specification& s, std::string_view text) {
  if (s.type && s.type != 's') refuse("the format '{}' does not suit a string", s.type);
  if (s.sign != '-' || s.alternate || s.grouping || s.align == '=')
    refuse("a format for numbers is applied to a string");
  std::string body(text);
  if (s.precision) body.resize(byte_offset(body, *s.precision));
  return pad(s, "", body, '<');
}

std::string format_integer(const Specification& s, Integer value) {
  if (s.precision) refuse("an integer takes no precision");
  if (s.type == 'c') {
    if (value < 0 || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      refuse("a number is not a character");
    std::string body;
    append_code_point(body, static_cast<char32_t>(value));
    return pad(s, "", body, '<');
  }
  const unsigned base = s.type == 'b' ? 2 : s.type == 'o' ? 8 : s.type == 'x' || s.type == 'X' ? 16 : 10;
  if (base != 10 && s.grouping == ',') refuse("',' suits decimal numbers only");
  std::string prefix = sign_of(value < 0, s.sign);
  if (s.alternate && base != 10) prefix += std::string("0") + s.type;
  return pad_number(s, prefix, digits_of(magnitude(value), base, s.type == 'X'), "", base == 10 ? 3 : 4);
}

int exponent_of(const std::string& scientific) {
  return std::stoi(scientific.substr(scientific.find('e') + 1));
}

// Digits as %g: without trailing zeros unless `keep_zeros`; `always_point` gives 3.0 for 3.
std::string general(double value, size_t precision, bool keep_zeros, bool always_point) {
  const size_t p = std::max<size_t>(precision, 1);
  std::string text = fmt::format("{:.{}e}", value, p - 1);
  const int exponent = exponent_of(text);
  const bool scientific = exponent < -4 || exponent >= static_cast<int>(p) - (always_point ? 1 : 0);
  std::string tail;
  if (scientific) {
    tail = text.substr(text.find('e'));
    text.resize(text.find('e'));
  } else {
    text = fmt::format("{:.{}f}", value, static_cast<int>(p) - 1 - exponent);
  }
  if (!keep_zeros && text.find('.') != text.npos) {
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
  }
  if (always_point && !scientific && text.find('.') == text.npos) text += ".0";
  return text + tail;
}

std::string float_digits(double value, char type, std::optional<size_t> precision, bool alternate) {
  const char lower = static_cast<char>(type | 0x20);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "inf";
  if (type == 0) return precision ? general(value, *precision, false, true) : float_repr(value);
  if (type == '%') return fmt::format("{:.{}f}", value * 100, precision.value_or(6)) + "%";
  if (lower == 'f')
    return fmt::format("{:.{}f}", value, precision.value_or(6)) + (alternate && precision == 0u ? "." : "");
  if (lower == 'e') return fmt::format("{:.{}e}", value, precision.value_or(6));
  return general(value, precision.value_or(6), alternate, false);
}

std::string format_float(const Specification& s, double value) {
  if (s.type && std::string_view("eEfFgGn%").find(s.type) == std::string_view::npos)
    refuse("the format '{}' does not suit a number with a fraction", s.type);
  std::string digits = float_digits(std::fabs(value), s.type, s.precision, s.alternate);
  if (s.type == 'E' || s.type == 'F' || s.type == 'G') digits = to_upper(digits);
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  return pad_number(s, sign_of(std::signbit(value) && !std::isnan(value), s.sign), digits.substr(0, whole),
                    digits.substr(whole), 3);
}

bool is_float_type(char type) {
  return type && std::string_view("eEfFgG%").find(type) != std::string_view::npos;
}

// ---- %

class PercentFormatter {
 public:
  PercentFormatter(Meter& meter, const Value& format, const Value& values)
      : meter_(meter), format_(format.text()), values_(values), escapes_(format.is_markup()), out_(meter) {}

  Value run() {
    while (at_ < format_.size()) {
      const size_t percent = std::min(format_.find('%', at_), format_.size());
      out_ += format_.substr(at_, percent - at_);
      at_ = percent;
      if (at_ < format_.size()) convert_one();
    }
    if (n_used_ < n_values() && !is_mapping()) refuse("a format has fewer places than values");
    return out_.finish(escapes_);
  }

 private:
  bool is_mapping() const { return values_.is_dict() || values_.is_list() || values_.is_undefined(); }
  size_t n_values() const { return values_.is_tuple() ? (*values_.sequence())->size() : 1; }
  Value next_value() {
    if (n_used_ >= n_values()) refuse("a format has more places than values");
    return values_.is_tuple() ? (*values_.sequence())->items()[n_used_++] : (++n_used_, values_);
  }
  char peek() const { return at_ < format_.size() ? format_[at_] : '\0'; }

  size_t read_size(size_t most, Specification& s, bool is_width) {
    if (peek() != '*') return read_count(format_, at_, most);
    ++at_;
    const Value value = next_value();
    Integer count = want_integer(value, "'*' in a format");
    if (count < 0 && is_width) s.align = '<';
    if (count < 0) count = is_width ? -count : 0;
    if (count > static_cast<Integer>(most))
      refuse("a width or precision of a format is larger than {}", most);
    return static_cast<size_t>(count);
  }

  void convert_one() {
    ++at_;
    std::optional<Value> named;
    if (peek() == '(') named = named_value();
    Specification s;
    bool zero = false;
    for (; std::string_view("#0- +").find(peek()) != std::string_view::npos && peek(); ++at_) {
      if (peek() == '#') s.alternate = true;
      if (peek() == '0') zero = true;
      if (peek() == '-') s.align = '<';
      if (peek() == '+' || (peek() == ' ' && s.sign != '+')) s.sign = peek();
    }
    s.width = read_size(kMaxWidth, s, true);
    if (peek() == '.') {
      ++at_;
      s.precision = read_size(kMaxPrecision, s, false);
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    meter_.scan(s.width * 4);
    if (!peek()) refuse("a format ends too early");
    const char type = format_[at_++];
    if (type == '%') {
      out_ += "%";
      return;
    }
    const Value value = named ? *named : next_value();
    out_ += converted(type, s, zero, value);
  }

  Value named_value() {
    if (!values_.is_dict()) refuse("a format with names wants a dict");
    size_t depth = 1, end = ++at_;
    for (; end < format_.size() && depth > 0; ++end)
      depth += format_[end] == '(' ? 1 : format_[end] == ')' ? -1 : 0;
    if (depth > 0) refuse("a name in a format has no end");
    const std::string_view name = format_.substr(at_, end - 1 - at_);
    at_ = end;
    const Value* found = (*values_.dict())->find(name);
    if (!found) refuse("a format names '{}', which is not there", name);
    return *found;
  }

  std::string converted(char type, Specification s, bool zero, const Value& value) {
    const auto text = [&](std::string body) {
      if (escapes_ && !value.is_markup()) body = escape_html(body);
      s.type = 0;
      s.sign = '-';
      s.alternate = false;
      if (s.precision) body.resize(byte_offset(body, *s.precision));
      return pad(s, "", body, '>');
    };
    if (type == 's') return text(to_text(meter_, value));
    if (type == 'r') return text(repr(meter_, value));
    if (type == 'c') return text(character(value));
    if (zero && s.align != '<') {
      s.align = '=';
      s.fill = '0';
    }
    if (value.is_undefined()) refuse_undefined(value);
    if (!value.is_number()) refuse("the format '%{}' wants a number, not {}", type, type_name(value));
    if (is_float_type(type)) {
      s.type = type;
      return format_float(s, value.floating());
    }
    return converted_integer(type, s, value);
  }

  static std::string character(const Value& value) {
    if (value.is_string() && (*value.string())->n_characters() == 1) return std::string(value.text());
    Specification s;
    s.type = 'c';
    return format_integer(s, want_integer(value, "the format '%c'"));
  }

  static std::string converted_integer(char type, const Specification& s, const Value& value) {
    const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : 10;
    if (base == 10 && type != 'd' && type != 'i' && type != 'u') refuse("there is no format '%{}'", type);
    if (base != 10 && !value.is_integer()) refuse("the format '%{}' wants an integer", type);
    const Integer number =
        value.is_float()
            ? static_cast<Integer>(std::trunc(static_cast<double>(floor_of(std::fabs(value.floating()))))) *
                  (value.floating() < 0 ? -1 : 1)
            : value.integer();
    std::string prefix = sign_of(number < 0, s.sign);
    if (s.alternate && base != 10) prefix += std::string("0") + type;
    std::string digits = digits_of(magnitude(number), base, type == 'X');
    if (s.precision && digits.size() < *s.precision) digits.insert(0, *s.precision - digits.size(), '0');
    return pad(s, prefix, digits, '>');
  }

  Meter& meter_;
  const std::string_view format_;
  const Value& values_;
  const bool escapes_;
  TextBuilder out_;
  size_t at_ = 0, n_used_ = 0;
};

// ---- Braces

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const Arguments& arguments, bool escapes)
      : interpreter_(interpreter), meter_(interpreter.meter()), arguments_(arguments), escapes_(escapes) {}

  std::string run(std::string_view format, int depth) {
    if (depth > 2) refuse("a format is nested too deep");
    TextBuilder out(meter_);
    for (size_t at = 0; at < format.size();) {
      const char c = format[at];
      if ((c == '{' || c == '}') && at + 1 < format.size() && format[at + 1] == c) {
        out += format.substr(at, 1);
        at += 2;
      } else if (c == '}') {
        refuse("a format has a '}}' too many");
      } else if (c == '{') {
        const size_t end = end_of_field(format, at + 1);
        out += field(format.substr(at + 1, end - at - 1), depth);
        at = end + 1;
      } else {
        out += format.substr(at, 1);
        ++at;
      }
    }
    return std::move(out.text());
  }

 private:
  static size_t end_of_field(std::string_view format, size_t at) {
    size_t depth = 1;
    bool in_brackets = false;
    for (; at < format.size(); ++at) {
      if (format[at] == '[') in_brackets = true;
      if (format[at] == ']') in_brackets = false;
      if (in_brackets && depth == 1) continue;
      if (format[at] == '{') ++depth;
      if (format[at] == '}' && --depth == 0) return at;
    }
    refuse("a format lacks a '}}'");
  }

  std::string field(std::string_view text, int depth) {
    size_t end = 0;
    for (bool in_brackets = false; end < text.size(); ++end) {
      if (text[end] == '[') in_brackets = true;
      if (text[end] == ']') in_brackets = false;
      if (!in_brackets && (text[end] == '!' || text[end] == ':')) break;
    }
    Value value = named_value(text.substr(0, end));
    std::string_view rest = text.substr(end);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) refuse("a format has a wrong conversion");
      value = converted(value, rest[1]);
      rest.remove_prefix(2);
    }
    const std::string specification = rest.empty() ? "" : run(rest.substr(1), depth + 1);
    if (!escapes_) return format_value(interpreter_, value, specification);
    if (value.is_markup()) {
      if (!specification.empty()) refuse("a safe string takes no format");
      return std::string(value.text());
    }
    return escape_html(format_value(interpreter_, value, specification));
  }

  Value converted(const Value& value, char conversion) {
    if (conversion == 's') return make_string(meter_, to_text(meter_, value));
    if (conversion == 'r') return make_string(meter_, repr(meter_, value));
    refuse("there is no conversion '{}'", conversion);
  }

  Value named_value(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first_value(name.substr(0, end), end == name.size());
    for (size_t at = end; at < name.size();) {
      const bool is_attribute = name[at] == '.';
      if (!is_attribute && name[at] != '[') refuse("a name in a format is malformed");
      const size_t stop =
          is_attribute ? std::min(name.find_first_of(".[", at + 1), name.size()) : name.find(']', at);
      if (stop == name.npos || stop == at + 1) refuse("a name in a format is malformed");
      const std::string_view part = name.substr(at + 1, stop - at - 1);
      value = is_attribute ? interpreter_.attribute(value, part) : interpreter_.item(value, key(part));
      at = is_attribute ? stop : stop + 1;
    }
    return value;
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, is_digit_char);
  }

  Value key(std::string_view text) {
    if (is_number(text))
      if (const std::optional<Integer> index = parse_integer(text, 10)) return Value(*index);
    return make_string(meter_, std::string(text));
  }

  Value first_value(std::string_view name, bool is_whole) {
    if (name.empty() && is_whole) return positional_value(number_automatically());
    if (is_number(name)) {
      if (is_whole && next_automatic_.value_or(0) > 0) refuse("a format mixes numbered and plain places");
      if (is_whole) next_automatic_.reset(), is_manual_ = true;
      return positional_value(parse_integer(name, 10).value_or(-1));
    }
    if (const Value* value = arguments_.find(name)) return *value;
    refuse("a format names '{}', which is not there", name);
  }

  Integer number_automatically() {
    if (is_manual_) refuse("a format mixes numbered and plain places");
    next_automatic_ = next_automatic_.value_or(0) + 1;
    return *next_automatic_ - 1;
  }

  Value positional_value(Integer i) {
    if (i < 0 || i >= static_cast<Integer>(arguments_.positional.size()))
      refuse("a format has more places than values");
    return arguments_.positional[static_cast<size_t>(i)];
  }

  Interpreter& interpreter_;
  Meter& meter_;
  const Arguments& arguments_;
  const bool escapes_;
  std::optional<Integer> next_automatic_;
  bool is_manual_ = false;
};

}  // namespace

std::string format_fixed(double value, int precision) { return fmt::format("{:.{}f}", value, precision); }

std::string format_value(Interpreter& interpreter, const Value& value, std::string_view specification) {
  if (specification.empty()) return to_text(interpreter.meter(), value);
  Specification s = parse_specification(specification);
  interpreter.meter().scan(s.width * 4);
  if (value.is_string()) return format_text(s, value.text());
  if (!value.is_number()) refuse("a value of type {} takes no format", type_name(value));
  if (s.zero) s.align = '=';
  if (value.is_float() || is_float_type(s.type)) return format_float(s, value.floating());
  if (s.type && std::string_view("bcdoxXn").find(s.type) == std::string_view::npos)
    refuse("the format '{}' does not suit an integer", s.type);
  return format_integer(s, value.integer());
}

Value format_percent(Interpreter& interpreter, const Value& format, const Value& values) {
  return PercentFormatter(interpreter.meter(), format, values).run();
}

Value format_braces(Interpreter& interpreter, const Value& format, const Arguments& arguments) {
  const bool is_markup = format.is_markup();
  std::string text = BraceFormatter(interpreter, arguments, is_markup).run(format.text(), 1);
  return make_string(interpreter.meter(), std::move(text), is_markup);
}

}  // namespace moeflux::jinja
