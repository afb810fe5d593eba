#include "text/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

constexpr std::string_view kOperatorTexts[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_text();
    add(Token::Kind::End, "");
    return std::move(tokens_);
  }

 private:
  enum class Tag : uint8_t { None, Block, Variable, Comment, Raw };

  [[noreturn]] void fail(const std::string& what) const { throw SyntaxRefusal(line_, what); }

  bool starts(std::string_view with, size_t at) const {
    return std::string_view(source_).substr(at, with.size()) == with;
  }
  char peek(size_t at) const { return at < source_.size() ? source_[at] : '\0'; }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(source_, next))) break;
      at = next;
    }
    return at;
  }

  // Moves on to `to`, counting lines.
  void advance(size_t to) {
    line_ += static_cast<uint32_t>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                              source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    line_starting_ = to > at_ ? source_[to - 1] == '\n' : false;
    at_ = to;
  }

  void add(Token::Kind kind, std::string_view text) {
    Token token;
    token.kind = kind;
    token.text = text;
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  // {% raw %}, with any white space and signs; gives where it ends, or 0.
  size_t end_of_word_tag(size_t at, std::string_view word, bool trims_newline) const {
    at += 2;
    if (peek(at) == '-' || peek(at) == '+') ++at;
    at = skip_space(at);
    if (!starts(word, at)) return 0;
    at = skip_space(at + word.size());
    if (starts("-%}", at)) return skip_space(at + 3);
    if (trims_newline && starts("+%}", at)) return at + 3;
    if (!starts("%}", at)) return 0;
    at += 2;
    return trims_newline && peek(at) == '\n' ? at + 1 : at;
  }

  Tag tag_at(size_t at) const {
    if (peek(at) != '{') return Tag::None;
    switch (peek(at + 1)) {
      case '%':
        return end_of_word_tag(at, "raw", false) ? Tag::Raw : Tag::Block;
      case '{':
        return Tag::Variable;
      case '#':
        return Tag::Comment;
      default:
        return Tag::None;
    }
  }

  // The text before a tag at `tag`, without what the tag's sign and its place on the line strip.
  std::string_view stripped_text(size_t tag, bool may_strip_indent) const {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const char sign = peek(tag + 2);
    if (sign == '-') {
      while (!text.empty()) {
        size_t last = text.size() - 1;
        while (last > 0 && (text[last] & 0xc0) == 0x80) --last;
        size_t at = last;
        if (!is_space(next_code_point(text, at))) break;
        text = text.substr(0, last);
      }
    } else if (sign != '+' && may_strip_indent) {
      const size_t line_begin = text.rfind('\n') + 1;
      if ((line_begin > 0 || line_starting_) && line_begin < text.size() && is_blank(text.substr(line_begin)))
        text = text.substr(0, line_begin);
    }
    return text;
  }

  static bool is_blank(std::string_view text) {
    for (size_t at = 0; at < text.size();)
      if (!is_space(next_code_point(text, at))) return false;
    return true;
  }

  void lex_text() {
    size_t tag = at_;
    Tag kind = Tag::None;
    while (tag < source_.size() && (kind = tag_at(tag)) == Tag::None) {
      tag = source_.find('{', tag + 1);
      if (tag == std::string::npos) tag = source_.size();
    }
    const std::string_view text =
        kind == Tag::None ? std::string_view(source_).substr(at_) : stripped_text(tag, kind != Tag::Variable);
    if (!text.empty()) add(Token::Kind::Data, text);
    if (kind == Tag::None) return advance(source_.size());
    advance(tag);
    if (kind == Tag::Raw)
      lex_raw();
    else if (kind == Tag::Comment)
      lex_comment();
    else
      lex_tag(kind == Tag::Variable);
  }

  void lex_comment() {
    const size_t sign = at_ + 2;
    const size_t begin = peek(sign) == '-' || peek(sign) == '+' ? sign + 1 : sign;
    const size_t end = source_.find("#}", begin);
    if (end == std::string::npos) fail("a comment has no end");
    if (end > begin && source_[end - 1] == '-') return advance(skip_space(end + 2));
    if (end > begin && source_[end - 1] == '+') return advance(end + 2);
    advance(peek(end + 2) == '\n' ? end + 3 : end + 2);
  }

  void lex_raw() {
    advance(end_of_word_tag(at_, "raw", false));
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const size_t end = end_of_word_tag(tag, "endraw", true);
      if (!end) continue;
      const std::string_view text = stripped_text(tag, true);
      if (!text.empty()) add(Token::Kind::Data, text);
      return advance(end);
    }
    fail("a raw block has no end");
  }

  // Where the tag that is open ends if its end stands here; 0 if it does not. Only outside of brackets.
  size_t end_of_tag(bool variable) const {
    if (!brackets_.empty()) return 0;
    const std::string_view close = variable ? "}}" : "%}";
    if (peek(at_) == '-' && starts(close, at_ + 1)) return skip_space(at_ + 3);
    if (!variable && peek(at_) == '+' && starts(close, at_ + 1)) return at_ + 3;
    if (!starts(close, at_)) return 0;
    return !variable && peek(at_ + 2) == '\n' ? at_ + 3 : at_ + 2;
  }

  void lex_tag(bool variable) {
    add(variable ? Token::Kind::VariableBegin : Token::Kind::BlockBegin, "");
    const char sign = peek(at_ + 2);
    advance(sign == '-' || sign == '+' ? at_ + 3 : at_ + 2);
    while (at_ < source_.size()) {
      if (const size_t end = end_of_tag(variable)) {
        add(variable ? Token::Kind::VariableEnd : Token::Kind::BlockEnd, "");
        return advance(end);
      }
      const size_t after_space = skip_space(at_);
      if (after_space != at_)
        advance(after_space);
      else
        lex_expression_token();
    }
  }

  void lex_expression_token() {
    size_t after = at_;
    const char32_t c = next_code_point(source_, after);
    if (c < 0x80 && is_ascii_digit(static_cast<char>(c)))
      lex_number();
    else if (c == '\'' || c == '"')
      lex_string(static_cast<char>(c));
    else if (is_identifier_start(c) || is_identifier_continue(c))
      lex_name();
    else
      lex_operator();
  }

  void lex_name() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_identifier_continue(next_code_point(source_, next))) break;
      end = next;
    }
    size_t first = at_;
    if (!is_identifier_start(next_code_point(source_, first)))
      fail("a name begins with an invalid character");
    add(Token::Kind::Name, std::string_view(source_).substr(at_, end - at_));
    advance(end);
  }

  // Digits with single underscores between them; gives where they end.
  size_t skip_digits(size_t at, bool (*is_digit)(char)) const {
    while (is_digit(peek(at)) || (peek(at) == '_' && is_digit(peek(at + 1)))) ++at;
    return at;
  }

  size_t skip_fraction_and_exponent(size_t at) const {
    if (peek(at) == '.' && is_ascii_digit(peek(at + 1))) at = skip_digits(at + 1, is_ascii_digit);
    if (peek(at) == 'e' || peek(at) == 'E') {
      size_t exponent = at + 1;
      if (peek(exponent) == '+' || peek(exponent) == '-') ++exponent;
      if (is_ascii_digit(peek(exponent))) at = skip_digits(exponent, is_ascii_digit);
    }
    return at;
  }

  static int digit_value(char c) {
    if (is_ascii_digit(c)) return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
  }

  void add_integer(std::string_view digits, int base) {
    Integer value = 0;
    for (const char c : digits) {
      if (c == '_') continue;
      if (value > (kIntegerMax - digit_value(c)) / base) fail("an integer is too large");
      value = value * base + digit_value(c);
    }
    add(Token::Kind::IntegerLiteral, "");
    tokens_.back().integer = value;
  }

  bool lex_prefixed_integer() {
    const char letter = static_cast<char>(peek(at_ + 1) | 0x20);
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (peek(at_) != '0' || base == 0) return false;
    const auto fits = [base](char c) { return digit_value(c) < base; };
    size_t end = at_ + 2;
    while (fits(peek(end)) || (peek(end) == '_' && fits(peek(end + 1)))) ++end;
    if (end == at_ + 2) return false;
    add_integer(std::string_view(source_).substr(at_ + 2, end - at_ - 2), base);
    advance(end);
    return true;
  }

  void lex_number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t end = skip_digits(at_, is_ascii_digit);
    const size_t float_end = after_dot ? end : skip_fraction_and_exponent(end);
    if (float_end != end) {
      add_float(std::string_view(source_).substr(at_, float_end - at_));
      return advance(float_end);
    }
    if (lex_prefixed_integer()) return;
    if (peek(at_) == '0') {  // zeros only: 012 is two numbers, which no expression allows
      end = at_;
      while (peek(end) == '0' || (peek(end) == '_' && peek(end + 1) == '0')) ++end;
    }
    add_integer(std::string_view(source_).substr(at_, end - at_), 10);
    advance(end);
  }

  void add_float(std::string_view text) {
    std::string digits(text);
    std::erase(digits, '_');
    double value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);
    add(Token::Kind::FloatLiteral, "");
    tokens_.back().floating = value;
  }

  void lex_string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string has no end");
    const std::string text = unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    add(Token::Kind::StringLiteral, text);
    advance(end + 1);
  }

  std::string unescape(std::string_view text) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '\\')
        out += text[at++];
      else
        at = append_escape(out, text, at + 1);
    }
    return out;
  }

  // `at` is behind the backslash; gives where the escape ends.
  size_t append_escape(std::string& out, std::string_view text, size_t at) const {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"\n", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = text[at];
    if (const size_t i = kLetters.find(c); i != kLetters.npos) {
      if (i < kMeanings.size()) out += kMeanings[i];
      return at + 1;
    }
    if (c == 'x') return append_hexadecimal(out, text, at + 1, 2);
    if (c == 'u') return append_hexadecimal(out, text, at + 1, 4);
    if (c == 'U') return append_hexadecimal(out, text, at + 1, 8);
    if (c == 'N') fail("names of characters in strings are not supported");
    if (c >= '0' && c <= '7') return append_octal(out, text, at);
    out += '\\';
    return at;  // an escape that means nothing stays as it is
  }

  size_t append_hexadecimal(std::string& out, std::string_view text, size_t at, size_t n_digits) const {
    char32_t value = 0;
    if (at + n_digits > text.size()) fail("an escape in a string lacks digits");
    for (size_t i = 0; i < n_digits; ++i) {
      const int digit = digit_value(text[at + i]);
      if (digit > 15) fail("an escape in a string lacks digits");
      value = value << 4 | static_cast<char32_t>(digit);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      fail("an escape in a string is not a character");
    append_code_point(out, value);
    return at + n_digits;
  }

  size_t append_octal(std::string& out, std::string_view text, size_t at) const {
    char32_t value = 0;
    for (int i = 0; i < 3 && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++i)
      value = value * 8 + static_cast<char32_t>(text[at++] - '0');
    append_code_point(out, value);
    return at;
  }

  void lex_operator() {
    for (const std::string_view op : kOperatorTexts) {
      if (!starts(op, at_)) continue;
      balance(op[0]);
      add(Token::Kind::Operator, op);
      return advance(at_ + op.size());
    }
    size_t end = at_;
    next_code_point(source_, end);
    fail(fmt::format("unexpected character '{}'", source_.substr(at_, end - at_)));
  }

  void balance(char c) {
    if (c == '(' || c == '[' || c == '{') {
      brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets_.empty() || brackets_.back() != c) fail(fmt::format("unexpected '{}'", c));
      brackets_.pop_back();
    }
  }

  const std::string source_;
  std::vector<Token> tokens_;
  std::string brackets_;  // the closing ones that are due
  size_t at_ = 0;
  uint32_t line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes)
    throw SyntaxRefusal(1, fmt::format("{} bytes are more than {}", source.size(), kMaxSourceBytes));
  size_t n_characters = 0;
  if (!count_code_points(source, n_characters)) throw SyntaxRefusal(1, "it is not valid UTF-8");
  return Lexer(source).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::Data:
      return "text";
    case Token::Kind::VariableBegin:
      return "'{{'";
    case Token::Kind::VariableEnd:
      return "'}}'";
    case Token::Kind::BlockBegin:
      return "'{%'";
    case Token::Kind::BlockEnd:
      return "'%}'";
    case Token::Kind::StringLiteral:
      return "a string";
    case Token::Kind::IntegerLiteral:
    case Token::Kind::FloatLiteral:
      return "a number";
    case Token::Kind::End:
      return "the end of the template";
    case Token::Kind::Name:
    case Token::Kind::Operator:
      break;
  }
  return "'" + token.text + "'";
}

}  // namespace moeflux::jinja
