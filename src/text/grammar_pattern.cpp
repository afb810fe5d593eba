// Patterns of JSON schemas: regular expressions in the syntax of ECMAScript.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/grammar.h"
#include "text/grammar_regular.h"

namespace moeflux {
namespace {

constexpr size_t kMaxPatternBytes = 10'000;

const CodeRanges kDigit{{'0', '9'}};
const CodeRanges kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodeRanges kSpace{{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodeRanges kLineEnd{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  SearchPattern parse() {
    SearchPattern out;
    parse_look_ahead(out);
    const size_t begin = at_;
    out.text = parse_choice(0);
    if (at_ < text_.size()) wrong(at_, "')' without '('");
    if (out.required.empty() && out.excluded.empty()) return out;
    if (out.text.kind == Expression::Kind::Choice) unsupported(begin, "look-ahead and choices side by side");
    out.text = Expression::sequence({Expression::literal(std::string(1, kTextStart)), std::move(out.text)});
    return out;
  }

 private:
  [[noreturn]] void wrong(size_t at, const std::string& what) const {
    fail(Errc::InvalidArgument, "pattern '{}', offset {}: {}", text_, at, what);
  }
  [[noreturn]] void unsupported(size_t at, const std::string& what) const {
    fail(Errc::Unsupported, "pattern '{}', offset {}: {} are not supported", text_, at, what);
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }

  // At the start of the text, what lies ahead is the whole text: look-ahead is one more condition on it.
  void parse_look_ahead(SearchPattern& out) {
    if (text_.substr(0, 4) != "^(?=" && text_.substr(0, 4) != "^(?!") return;
    ++at_;
    while (text_.substr(at_, 3) == "(?=" || text_.substr(at_, 3) == "(?!") {
      const size_t begin = at_;
      at_ += 3;
      Expression ahead = parse_choice(1);
      if (!take(")")) wrong(begin, "the group is not closed");
      ahead = Expression::sequence(
          {Expression::literal(std::string(1, kTextStart)), std::move(ahead), any_text()});
      (text_[begin + 2] == '=' ? out.required : out.excluded).push_back(std::move(ahead));
    }
  }

  static Expression any_text() {
    return Expression::repeat(Expression::one_of(any_code_point()), 0, kUnbounded);
  }

  Expression parse_choice(uint32_t nesting) {
    if (nesting > kMaxGrammarNesting) wrong(at_, fmt::format("nested deeper than {}", kMaxGrammarNesting));
    std::vector<Expression> parts;
    do {
      parts.push_back(parse_sequence(nesting));
    } while (take("|"));
    return Expression::choice(std::move(parts));
  }

  Expression parse_sequence(uint32_t nesting) {
    std::vector<Expression> parts;
    while (at_ < text_.size() && peek() != '|' && peek() != ')') {
      const bool assertion = peek() == '^' || peek() == '$';
      Expression item = parse_item(nesting);
      const size_t begin = at_;
      if (parse_repetition(item) && assertion) wrong(begin, "an assertion cannot be repeated");
      parts.push_back(std::move(item));
    }
    return Expression::sequence(std::move(parts));
  }

  Expression parse_item(uint32_t nesting) {
    if (take("^")) return Expression::literal(std::string(1, kTextStart));
    if (take("$")) return Expression::literal(std::string(1, kTextEnd));
    if (take(".")) return Expression::one_of(complement(kLineEnd));
    if (peek() == '(') return parse_group(nesting);
    if (peek() == '[') return parse_class();
    if (peek() == '*' || peek() == '+' || peek() == '?') wrong(at_, "there is nothing to repeat");
    if (peek() == '\\') return Expression::one_of(parse_escape(false));
    std::string bytes;
    append_utf8(bytes, read());
    return Expression::literal(std::move(bytes));
  }

  Expression parse_group(uint32_t nesting) {
    const size_t begin = at_++;
    if (take("?")) {
      if (take("=") || take("!") || take("<=") || take("<!"))
        unsupported(begin, "look-behind, and look-ahead elsewhere than after a leading '^',");
      if (take("<")) {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) wrong(begin, "the group's name is not closed");
        at_ = end + 1;
      } else if (!take(":")) {
        unsupported(begin, "groups with flags");
      }
    }
    Expression inner = parse_choice(nesting + 1);
    if (!take(")")) wrong(begin, "the group is not closed");
    return inner;
  }

  bool parse_repetition(Expression& item) {
    uint32_t least = 0, most = kUnbounded;
    if (take("?"))
      most = 1;
    else if (take("+"))
      least = 1;
    else if (!take("*") && !parse_counts(least, most))
      return false;
    take("?");  // a lazy repetition matches the same texts
    if (peek() == '*' || peek() == '+' || peek() == '?') wrong(at_, "there is nothing to repeat");
    item = most == 0 ? Expression::empty() : Expression::repeat(std::move(item), least, most);
    return true;
  }

  // '{' that is not a count stands for itself.
  bool parse_counts(uint32_t& least, uint32_t& most) {
    const size_t begin = at_;
    if (!take("{")) return false;
    const bool has_least = parse_count(least);
    most = least;
    if (has_least && take(",") && !parse_count(most)) most = kUnbounded;
    if (!has_least || !take("}")) {
      at_ = begin;
      return false;
    }
    if (least > most) wrong(begin, "the counts are out of order");
    return true;
  }

  bool parse_count(uint32_t& count) {
    const size_t begin = at_;
    uint64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<uint64_t>(peek() - '0');
      if (value > kMaxGrammarRepetitions)
        wrong(begin, fmt::format("repeated more than {} times", kMaxGrammarRepetitions));
      ++at_;
    }
    count = static_cast<uint32_t>(value);
    return at_ > begin;
  }

  // characters

  uint32_t read() {
    try {
      return read_utf8(text_, at_);
    } catch (const Error&) {
      wrong(at_, "not valid UTF-8");
    }
  }

  Expression parse_class() {
    const size_t begin = at_++;
    const bool negated = take("^");
    CodeRanges all;
    while (peek() != ']') {
      if (at_ >= text_.size()) wrong(begin, "the class is not closed");
      const size_t range_begin = at_;
      CodeRanges item = parse_class_item();
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        const CodeRanges last = parse_class_item();
        const bool single = is_single(item) && is_single(last);
        if (!single || last[0].low < item[0].low) wrong(range_begin, "not a range of characters");
        item = {{item[0].low, last[0].low}};
      }
      all.insert(all.end(), item.begin(), item.end());
    }
    ++at_;
    all = normalise(std::move(all));
    return Expression::one_of(negated ? complement(all) : all);
  }

  static bool is_single(const CodeRanges& ranges) {
    return ranges.size() == 1 && ranges[0].low == ranges[0].high;
  }

  CodeRanges parse_class_item() {
    if (peek() == '\\') return parse_escape(true);
    const uint32_t code = read();
    return {{code, code}};
  }

  CodeRanges parse_escape(bool in_class) {
    const size_t begin = at_++;
    if (at_ >= text_.size()) wrong(begin, "the escape is not complete");
    const uint32_t c = read();
    switch (c) {
      case 'd':
        return kDigit;
      case 'D':
        return complement(kDigit);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 'p':
      case 'P':
        unsupported(begin, "Unicode properties");
      case 'k':
        unsupported(begin, "back references");
      case 'B':
        unsupported(begin, "word boundaries");
      case 'b':
        if (!in_class) unsupported(begin, "word boundaries");
        break;
      default:
        break;
    }
    if (c >= '1' && c <= '9') unsupported(begin, "back references");
    const uint32_t code = escaped_character(begin, c);
    return {{code, code}};
  }

  uint32_t escaped_character(size_t begin, uint32_t c) {
    static constexpr std::pair<char, uint32_t> kNamed[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'},
                                                           {'v', '\v'}, {'b', '\b'}, {'0', '\0'}};
    for (const auto& [name, code] : kNamed)
      if (c == static_cast<uint32_t>(name)) return code;
    if (c == 'x') return parse_hex(begin, 2);
    if (c == 'u') return parse_unicode(begin);
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter) wrong(begin, "unknown escape");
    return c;
  }

  uint32_t parse_unicode(size_t begin) {
    uint32_t code = 0;
    if (take("{")) {
      size_t n_digits = 0;
      while (n_digits < 6 && peek(n_digits) != '}' && peek(n_digits) != '\0') ++n_digits;
      code = parse_hex(begin, n_digits);
      if (!take("}")) wrong(begin, "'}' is missing");
    } else {
      code = parse_hex(begin, 4);
      if (code >= 0xD800 && code < 0xDC00 && take("\\u"))
        code = 0x10000 + ((code - 0xD800) << 10) + (parse_hex(begin, 4) - 0xDC00);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
      wrong(begin, "not a code point that text can hold");
    return code;
  }

  uint32_t parse_hex(size_t begin, size_t n_digits) {
    uint32_t code = 0;
    for (size_t i = 0; i < n_digits; ++i, ++at_) {
      const char c = peek();
      const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f', upper = c >= 'A' && c <= 'F';
      if (!digit && !lower && !upper) wrong(begin, "hexadecimal digits are missing");
      code = code * 16 + static_cast<uint32_t>(digit ? c - '0' : lower ? c - 'a' + 10 : c - 'A' + 10);
    }
    if (n_digits == 0) wrong(begin, "hexadecimal digits are missing");
    return code;
  }

  std::string_view text_;
  size_t at_ = 0;
};

bool is_assertion(const Expression& e, char which) {
  return e.kind == Expression::Kind::Literal && e.bytes.size() == 1 && e.bytes[0] == which;
}

void flatten_into(std::vector<Expression>& out, Expression e) {
  if (e.kind != Expression::Kind::Sequence) return out.push_back(std::move(e));
  for (Expression& part : e.parts) flatten_into(out, std::move(part));
}

// Takes '^' and '$' from the two ends of a sequence, if it has them there and nowhere else.
bool strip_ends(Expression& e) {
  std::vector<Expression> parts;
  flatten_into(parts, e);
  if (parts.size() < 2 || !is_assertion(parts.front(), kTextStart) || !is_assertion(parts.back(), kTextEnd))
    return false;
  parts.erase(parts.begin());
  parts.pop_back();
  Expression inner = Expression::sequence(std::move(parts));
  if (has_assertions(inner)) return false;
  e = std::move(inner);
  return true;
}

}  // namespace

bool has_assertions(const Expression& e) {
  if (is_assertion(e, kTextStart) || is_assertion(e, kTextEnd)) return true;
  return std::any_of(e.parts.begin(), e.parts.end(), has_assertions);
}

SearchPattern parse_pattern(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes)
    fail(Errc::Unsupported, "the pattern has {} bytes, more than {}", pattern.size(), kMaxPatternBytes);
  SearchPattern out = Parser(pattern).parse();
  if (strip_ends(out.text)) return out;
  const Expression anything = Expression::repeat(Expression::one_of(any_code_point()), 0, kUnbounded);
  out.text = Expression::sequence({anything, std::move(out.text), anything});
  return out;
}

}  // namespace moeflux
