#include "text/pattern_syntax.h"

#include "base/error.h"

namespace moeflux {
namespace {

constexpr int kMaxGroupDepth = 32;
constexpr uint32_t kMaxCount = 1000;
constexpr uint32_t kEnd = UINT32_MAX;

bool is_letter(uint32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

int hex_value(uint32_t c) {
  if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A' + 10);
  return -1;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {
    const char* at = text.data();
    while (at != text.data() + text.size()) points_.push_back(next_code_point(at));
  }

  PatternExpression parse() {
    PatternExpression all = alternatives(false, 0);
    if (peek() != kEnd) broken("an unmatched ')'");
    return all;
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) const {
    fail(Errc::Unsupported, "{}: the pattern '{}' has {}, which is not supported", where_, text_, what);
  }
  [[noreturn]] void broken(std::string_view what) const {
    fail(Errc::Corrupt, "{}: the pattern '{}' has {}", where_, text_, what);
  }

  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < points_.size() ? points_[at_ + ahead] : kEnd; }
  uint32_t next() {
    if (at_ == points_.size()) broken("an end in the middle of something");
    return points_[at_++];
  }
  bool take(uint32_t c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view ascii) {
    for (size_t i = 0; i < ascii.size(); ++i)
      if (peek(i) != static_cast<unsigned char>(ascii[i])) return false;
    at_ += ascii.size();
    return true;
  }

  PatternExpression alternatives(bool ignore_case, int depth) {
    if (depth > kMaxGroupDepth) broken("too many groups inside each other");
    PatternExpression result;
    result.kind = PatternExpression::Kind::Alternatives;
    do result.parts.push_back(sequence(ignore_case, depth));
    while (take('|'));
    if (result.parts.size() > 1) return result;
    PatternExpression only = std::move(result.parts[0]);
    return only;
  }

  PatternExpression sequence(bool ignore_case, int depth) {
    PatternExpression result;
    while (peek() != kEnd && peek() != '|' && peek() != ')') {
      PatternExpression part = repeated(atom(ignore_case, depth));
      if (ignore_case) refuse_folded_pairs(result, part);
      result.parts.push_back(std::move(part));
    }
    return result;
  }

  // Without regard to case, "ss" also matches one sharp s, "st" a ligature, and so on.
  void refuse_folded_pairs(const PatternExpression& sequence, const PatternExpression& part) const {
    if (sequence.parts.empty() || part.kind != PatternExpression::Kind::Characters) return;
    const PatternExpression& before = sequence.parts.back();
    if (before.kind != PatternExpression::Kind::Characters) return;
    const auto has = [](const PatternExpression& e, char c) {
      return !e.set.intersection(CodePointSet::of(static_cast<unsigned char>(c))).empty();
    };
    for (const char* pair : {"ss", "st", "ff", "fi", "fl"})
      if (has(before, pair[0]) && has(part, pair[1]))
        unsupported(fmt::format("'{}' without regard to case", pair));
  }

  PatternExpression characters(CodePointSet set) const {
    PatternExpression result;
    result.kind = PatternExpression::Kind::Characters;
    result.set = std::move(set);
    return result;
  }

  PatternExpression atom(bool ignore_case, int depth) {
    const uint32_t c = next();
    switch (c) {
      case '(':
        return group(ignore_case, depth);
      case '[':
        return characters(fold(character_class(depth + 1), ignore_case));
      case '.':
        return characters(CodePointSet::of('\n').complement());
      case '\\':
        return characters(fold(escape(), ignore_case));
      case '$': {
        PatternExpression result;
        result.kind = PatternExpression::Kind::LineEnd;
        return result;
      }
      case '^':
        unsupported("'^'");
      case '*':
      case '+':
      case '?':
        broken("a repetition of nothing");
      default:
        return characters(fold(CodePointSet::of(c), ignore_case));
    }
  }

  PatternExpression group(bool ignore_case, int depth) {
    PatternExpression result;
    if (take("?i:")) {
      result = alternatives(true, depth + 1);
    } else if (take("?:")) {
      result = alternatives(ignore_case, depth + 1);
    } else if (take("?!") || take("?=")) {
      result.kind = PatternExpression::Kind::LookAhead;
      result.negative = points_[at_ - 1] == '!';
      result.parts.push_back(alternatives(ignore_case, depth + 1));
    } else if (peek() == '?') {
      unsupported("a group that starts with '(?' and is neither (?:, (?i:, (?= nor (?!");
    } else {
      result = alternatives(ignore_case, depth + 1);
    }
    if (!take(')')) broken("an unmatched '('");
    return result;
  }

  PatternExpression repeated(PatternExpression atom) {
    uint32_t least = 1, most = 1;
    if (peek() == '?' || peek() == '*' || peek() == '+') {
      const uint32_t c = next();
      least = c == '+' ? 1 : 0;
      most = c == '?' ? 1 : PatternExpression::kUnbounded;
    } else if (peek() == '{') {
      counts(least, most);
    } else {
      return atom;
    }
    const bool is_interval = points_[at_ - 1] == '}';
    const bool lazy = take('?'), possessive = !lazy && !is_interval && take('+');
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
      unsupported("a repetition of a repetition");
    if (atom.kind == PatternExpression::Kind::Sequence && atom.parts.size() == 1) {
      PatternExpression only = std::move(atom.parts[0]);
      atom = std::move(only);
    }
    if (atom.kind == PatternExpression::Kind::Characters && atom.least == 1 && atom.most == 1) {
      atom.least = least;
      atom.most = most;
      atom.lazy = lazy;
      atom.possessive = possessive;
      return atom;
    }
    if (least != 0 || most != 1 || possessive) unsupported("a group that is repeated");
    PatternExpression result;
    result.kind = PatternExpression::Kind::Optional;
    result.lazy = lazy;
    result.parts.push_back(std::move(atom));
    return result;
  }

  void counts(uint32_t& least, uint32_t& most) {
    ++at_;
    least = most = number();
    if (take(',')) most = peek() == '}' ? PatternExpression::kUnbounded : number();
    if (!take('}')) broken("a '{' that starts no repetition");
    if (least > most) broken("a repetition whose least count is greater than its most");
  }

  uint32_t number() {
    uint32_t value = 0;
    if (peek() < '0' || peek() > '9') broken("a '{' that starts no repetition");
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (next() - '0');
      if (value > kMaxCount) unsupported(fmt::format("a repetition of more than {}", kMaxCount));
    }
    return value;
  }

  // The part after '['.
  CodePointSet character_class(int depth) {
    if (depth > kMaxGroupDepth) broken("too many sets inside each other");
    const bool negated = take('^');
    CodePointSet result = CodePointSet::all();
    CodePointSet part;
    bool is_first = true;
    while (is_first || peek() != ']') {
      if (take("&&")) {
        result = result.intersection(part);
        part = CodePointSet();
      } else {
        part.add(class_item(depth));
      }
      is_first = false;
    }
    ++at_;
    result = result.intersection(part);
    return negated ? result.complement() : result;
  }

  CodePointSet class_item(int depth) {
    const uint32_t c = next();
    if (c == '[') {
      if (peek() == ':') unsupported("a POSIX set");
      return character_class(depth + 1);
    }
    if (c == ']') unsupported("a ']' at the start of a set");
    const CodePointSet first = c == '\\' ? escape() : CodePointSet::of(c);
    if (peek() != '-' || peek(1) == ']' || peek(1) == kEnd) return first;
    ++at_;
    const uint32_t d = next();
    if (d == '[') unsupported("a range that ends with a set");
    const CodePointSet last = d == '\\' ? escape() : CodePointSet::of(d);
    return range(first, last);
  }

  CodePointSet range(const CodePointSet& first, const CodePointSet& last) const {
    const auto one = [](const CodePointSet& set) {
      return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last;
    };
    if (!one(first) || !one(last)) unsupported("a range between sets");
    const uint32_t from = first.ranges()[0].first, to = last.ranges()[0].first;
    if (from > to) broken("a range whose end is before its start");
    return CodePointSet({{from, to}});
  }

  // The part after a backslash.
  CodePointSet escape() {
    const uint32_t c = next();
    switch (c) {
      case 'r':
        return CodePointSet::of('\r');
      case 'n':
        return CodePointSet::of('\n');
      case 't':
        return CodePointSet::of('\t');
      case 'f':
        return CodePointSet::of('\f');
      case 'v':
        return CodePointSet::of('\v');
      case 's':
        return white_space_characters();
      case 'S':
        return white_space_characters().complement();
      case 'd':
        return *unicode_property("Nd");
      case 'D':
        return unicode_property("Nd")->complement();
      case 'p':
        return property(false);
      case 'P':
        return property(true);
      case 'u':
        return CodePointSet::of(hexadecimal(4));
      case 'x':
        return CodePointSet::of(take('{') ? hexadecimal_in_braces() : hexadecimal(2));
      default:
        if (is_letter(c) || (c >= '0' && c <= '9')) unsupported(fmt::format("'\\{}'", static_cast<char>(c)));
        return CodePointSet::of(c);
    }
  }

  CodePointSet property(bool negated) {
    if (!take('{')) unsupported("a property without braces");
    if (take('^')) negated = !negated;
    std::string name;
    while (peek() != '}') append_utf8(name, next());
    ++at_;
    const std::optional<CodePointSet> set = unicode_property(name);
    if (!set) unsupported(fmt::format("the property '{}'", name));
    return negated ? set->complement() : *set;
  }

  uint32_t hexadecimal(size_t n_digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < n_digits; ++i) value = value * 16 + hex_digit();
    return checked(value);
  }
  uint32_t hexadecimal_in_braces() {
    uint32_t value = hex_digit();
    while (!take('}')) value = checked(value * 16 + hex_digit());
    return checked(value);
  }
  uint32_t hex_digit() {
    const int digit = hex_value(next());
    if (digit < 0) broken("a code point that is not hexadecimal");
    return static_cast<uint32_t>(digit);
  }
  uint32_t checked(uint32_t value) const {
    if (value > kMaxCodePoint || (value >= 0xD800 && value <= 0xDFFF)) broken("a code point that is none");
    return value;
  }

  // Both cases of ASCII letters, with the two other characters that Unicode folds to one. Other scripts'
  // cases would need tables that no published pattern calls for.
  CodePointSet fold(CodePointSet set, bool ignore_case) const {
    if (!ignore_case) return set;
    if (!set.empty() && set.ranges().back().last >= 0x80)
      unsupported("characters beyond ASCII without regard to case");
    std::vector<CodePointRange> more;
    for (const CodePointRange& range : set.ranges())
      for (uint32_t c = range.first; c <= range.last; ++c) {
        if (!is_letter(c)) continue;
        more.push_back({c ^ 0x20, c ^ 0x20});
        if ((c | 0x20) == 's') more.push_back({0x17F, 0x17F});
        if ((c | 0x20) == 'k') more.push_back({0x212A, 0x212A});
      }
    set.add(CodePointSet(std::move(more)));
    return set;
  }

  std::string_view text_;
  const std::string& where_;
  std::vector<uint32_t> points_;
  size_t at_ = 0;
};

}  // namespace

PatternExpression parse_pattern(std::string_view expression, const std::string& where) {
  return Parser(expression, where).parse();
}

}  // namespace moeflux
