// The text of a grammar: rules `name ::= expression` with literals, classes, groups, choices and repetition.
// A rule ends where the next one begins, so that line breaks mean nothing.
#include <unordered_map>

#include "base/error.h"
#include "text/grammar.h"
#include "text/grammar_analysis.h"

namespace moeflux {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  GrammarRules parse() {
    skip_space();
    while (at_ < text_.size()) parse_rule();
    finish();
    return std::move(out_);
  }

 private:
  struct Definition {
    uint32_t rule = 0;
    size_t used_at = 0;
    bool defined = false;
  };

  [[noreturn]] void wrong(size_t at, const std::string& what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < text_.size(); ++i) {
      const bool continuation = (static_cast<uint8_t>(text_[i]) & 0xC0) == 0x80;
      column = text_[i] == '\n' ? 1 : column + (continuation ? 0 : 1);
      line += text_[i] == '\n' ? 1 : 0;
    }
    fail(Errc::InvalidArgument, "grammar, line {}, column {}: {}", line, column, what);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#')
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      else if (c == ' ' || c == '\t' || c == '\r' || c == '\n')
        ++at_;
      else
        break;
    }
  }

  std::string_view take_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name_character(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  bool at_rule_start() {
    const size_t begin = at_;
    const bool named = !take_name().empty();
    skip_space();
    const bool defines = named && text_.substr(at_, 3) == "::=";
    at_ = begin;
    return defines;
  }

  Definition& definition(std::string_view name) {
    const auto [it, is_new] = names_.try_emplace(std::string(name));
    if (is_new) {
      if (out_.rules.size() == kMaxGrammarRules)
        wrong(at_, fmt::format("more than {} rules", kMaxGrammarRules));
      it->second = {static_cast<uint32_t>(out_.rules.size()), at_ - name.size(), false};
      out_.rules.push_back({std::string(name), {}});
    }
    return it->second;
  }

  void parse_rule() {
    const size_t begin = at_;
    const std::string_view name = take_name();
    if (name.empty()) wrong(begin, "a rule begins with its name");
    Definition& rule = definition(name);
    if (rule.defined) wrong(begin, fmt::format("the rule '{}' is defined twice", name));
    rule.defined = true;
    const uint32_t index = rule.rule;
    skip_space();
    if (!take("::=")) wrong(at_, fmt::format("'::=' must follow the name '{}'", name));
    skip_space();
    out_.rules[index].body = parse_choice(0);
    if (at_ < text_.size() && !at_rule_start())
      wrong(at_, peek() == ')' ? "')' without '('" : fmt::format("'{}' is not expected here", peek()));
  }

  Expression parse_choice(uint32_t nesting) {
    if (nesting > kMaxGrammarNesting)
      wrong(at_, fmt::format("groups are nested deeper than {}", kMaxGrammarNesting));
    std::vector<Expression> parts;
    do {
      skip_space();
      parts.push_back(parse_sequence(nesting));
    } while (take("|"));
    return Expression::choice(std::move(parts));
  }

  Expression parse_sequence(uint32_t nesting) {
    std::vector<Expression> parts;
    while (at_ < text_.size() && peek() != '|' && peek() != ')' && !at_rule_start()) {
      const size_t begin = at_;
      Expression item = parse_item(nesting);
      const size_t after = at_;
      skip_space();
      uint32_t n_repeats = 0;
      while (parse_repetition(item, begin)) {
        skip_space();
        if (++n_repeats > 4) wrong(after, "more than four repetitions of one part");
      }
      parts.push_back(std::move(item));
    }
    return Expression::sequence(std::move(parts));
  }

  Expression parse_item(uint32_t nesting) {
    if (peek() == '"') return parse_literal();
    if (peek() == '[') return parse_class();
    if (take(".")) return Expression::one_of(any_code_point());
    if (peek() == '(') return parse_group(nesting);
    const size_t begin = at_;
    const std::string_view name = take_name();
    if (name.empty()) wrong(begin, fmt::format("'{}' is not expected here", peek()));
    return Expression::call(definition(name).rule);
  }

  Expression parse_group(uint32_t nesting) {
    const size_t begin = at_++;
    Expression inner = parse_choice(nesting + 1);
    if (!take(")")) wrong(begin, "the group is not closed");
    return inner;
  }

  // repetition

  bool parse_repetition(Expression& item, size_t begin) {
    uint32_t least = 0, most = kUnbounded;
    if (take("?"))
      most = 1;
    else if (take("+"))
      least = 1;
    else if (peek() == '{')
      parse_counts(least, most);
    else if (!take("*"))
      return false;
    if (most == 0) wrong(begin, "repeated no time at all");
    item = Expression::repeat(std::move(item), least, most);
    return true;
  }

  void parse_counts(uint32_t& least, uint32_t& most) {
    const size_t begin = at_++;
    skip_space();
    least = peek() == ',' ? 0 : parse_count();
    skip_space();
    most = least;
    if (take(",")) {
      skip_space();
      most = peek() == '}' ? kUnbounded : parse_count();
      skip_space();
    }
    if (!take("}")) wrong(begin, "'{' is not closed: write {3}, {3,}, {,5} or {3,5}");
    if (least > most) wrong(begin, fmt::format("at least {} and at most {} times", least, most));
  }

  uint32_t parse_count() {
    const size_t begin = at_;
    uint64_t count = 0;
    while (peek() >= '0' && peek() <= '9') {
      count = count * 10 + static_cast<uint64_t>(peek() - '0');
      if (count > kMaxGrammarRepetitions)
        wrong(begin, fmt::format("repeated more than {} times", kMaxGrammarRepetitions));
      ++at_;
    }
    if (at_ == begin) wrong(begin, "a count is missing");
    return static_cast<uint32_t>(count);
  }

  // characters

  Expression parse_literal() {
    const size_t begin = at_++;
    std::string bytes;
    while (peek() != '"') {
      if (at_ >= text_.size() || peek() == '\n') wrong(begin, "the literal is not closed");
      append_utf8(bytes, parse_character());
    }
    ++at_;
    return Expression::literal(std::move(bytes));
  }

  Expression parse_class() {
    const size_t begin = at_++;
    const bool negated = take("^");
    CodeRanges ranges;
    while (peek() != ']') {
      const size_t range_begin = at_;
      const uint32_t low = parse_class_character(begin);
      uint32_t high = low;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = parse_class_character(begin);
      }
      if (high < low) wrong(range_begin, "the range ends before it begins");
      ranges.push_back({low, high});
    }
    ++at_;
    ranges = normalise(std::move(ranges));
    if (negated) ranges = complement(ranges);
    if (ranges.empty()) wrong(begin, "the class holds no character");
    return Expression::one_of(std::move(ranges));
  }

  uint32_t parse_class_character(size_t begin) {
    if (at_ >= text_.size() || peek() == '\n') wrong(begin, "the class is not closed");
    return parse_character();
  }

  uint32_t parse_character() {
    const size_t begin = at_;
    if (peek() == '\\') return parse_escape();
    try {
      return read_utf8(text_, at_);
    } catch (const Error&) {
      wrong(begin, "not valid UTF-8");
    }
  }

  uint32_t parse_escape() {
    const size_t begin = at_++;
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return parse_hex(begin, 2);
      case 'u':
        return parse_hex(begin, 4);
      case 'U':
        return parse_hex(begin, 8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '^':
      case '-':
      case '/':
        return static_cast<uint32_t>(c);
      default:
        wrong(begin, "unknown escape");
    }
  }

  uint32_t parse_hex(size_t begin, size_t n_digits) {
    uint32_t code = 0;
    for (size_t i = 0; i < n_digits; ++i, ++at_) {
      const char c = peek();
      const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f', upper = c >= 'A' && c <= 'F';
      if (!digit && !lower && !upper)
        wrong(begin, fmt::format("{} hexadecimal digits must follow", n_digits));
      code = code * 16 + static_cast<uint32_t>(digit ? c - '0' : lower ? c - 'a' + 10 : c - 'A' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
      wrong(begin, "not a code point that text can hold");
    return code;
  }

  void finish() {
    size_t first_unknown = text_.size();
    std::string_view unknown;
    for (const auto& [name, use] : names_)
      if (!use.defined && use.used_at < first_unknown) first_unknown = use.used_at, unknown = name;
    if (!unknown.empty()) wrong(first_unknown, fmt::format("the rule '{}' is not defined", unknown));
    const auto root = names_.find("root");
    if (root == names_.end()) wrong(0, "there is no rule 'root'");
    out_.root = root->second.rule;
    const std::vector<RuleFacts> facts = analyse_rules(out_);
    for (size_t i = 0; i < facts.size(); ++i)
      if (!facts[i].productive)
        fail(Errc::InvalidArgument, "grammar: the rule '{}' can never come to an end", out_.rules[i].name);
  }

  std::string_view text_;
  size_t at_ = 0;
  GrammarRules out_;
  std::unordered_map<std::string, Definition> names_;
};

}  // namespace

GrammarRules parse_grammar_rules(std::string_view text) {
  if (text.size() > kMaxGrammarBytes)
    fail(Errc::InvalidArgument, "the grammar has {} bytes, more than {}", text.size(), kMaxGrammarBytes);
  return Parser(text).parse();
}

}  // namespace moeflux
