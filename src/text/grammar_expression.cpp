#include "text/grammar_expression.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr uint32_t kLastCode = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

void append_without_surrogates(CodeRanges& out, CodeRange range) {
  range.high = std::min(range.high, kLastCode);
  if (range.low > range.high) return;
  if (range.low < kFirstSurrogate && range.high >= kFirstSurrogate) {
    out.push_back({range.low, kFirstSurrogate - 1});
    range.low = kFirstSurrogate;
  }
  if (range.low >= kFirstSurrogate && range.low <= kLastSurrogate) range.low = kLastSurrogate + 1;
  if (range.low <= range.high) out.push_back(range);
}

void shift_rules(Expression& expression, uint32_t by) {
  if (expression.kind == Expression::Kind::Rule) expression.rule += by;
  for (Expression& part : expression.parts) shift_rules(part, by);
}

}  // namespace

CodeRanges normalise(CodeRanges ranges) {
  CodeRanges valid;
  for (const CodeRange& range : ranges) append_without_surrogates(valid, range);
  std::sort(valid.begin(), valid.end(), [](const CodeRange& a, const CodeRange& b) { return a.low < b.low; });
  CodeRanges out;
  for (const CodeRange& range : valid) {
    if (!out.empty() && range.low <= out.back().high + 1)
      out.back().high = std::max(out.back().high, range.high);
    else
      out.push_back(range);
  }
  return out;
}

CodeRanges complement(const CodeRanges& normal) {
  CodeRanges gaps;
  uint32_t from = 0;
  for (const CodeRange& range : normal) {
    if (range.low > from) gaps.push_back({from, range.low - 1});
    from = range.high + 1;
  }
  gaps.push_back({from, kLastCode});
  return normalise(std::move(gaps));
}

CodeRanges any_code_point() { return normalise({{0, kLastCode}}); }

bool contains(const CodeRanges& normal, uint32_t code) {
  return std::any_of(normal.begin(), normal.end(),
                     [code](const CodeRange& range) { return range.low <= code && code <= range.high; });
}

uint32_t read_utf8(std::string_view text, size_t& at) {
  const auto byte = [&text](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t first = byte(at);
  const size_t more = first < 0x80 ? 0 : first < 0xC2 ? 4 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
  static constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (more < 4 && at + more < text.size()) {
    uint32_t code = more == 0 ? first : first & (0x3Fu >> more);
    bool valid = true;
    for (size_t i = 1; i <= more; ++i) {
      valid = valid && (byte(at + i) & 0xC0) == 0x80;
      code = (code << 6) | (byte(at + i) & 0x3F);
    }
    if (valid && code >= kLeast[more] && code <= kLastCode &&
        (code < kFirstSurrogate || code > kLastSurrogate)) {
      at += more + 1;
      return code;
    }
  }
  fail(Errc::InvalidArgument, "byte 0x{:02X} at offset {} is not valid UTF-8", first, at);
}

Expression Expression::literal(std::string bytes) {
  Expression e;
  e.kind = Kind::Literal;
  e.bytes = std::move(bytes);
  return e;
}

Expression Expression::one_of(CodeRanges ranges) {
  Expression e;
  e.kind = Kind::Class;
  e.ranges = std::move(ranges);
  return e;
}

Expression Expression::sequence(std::vector<Expression> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  Expression e;
  e.kind = Kind::Sequence;
  e.parts = std::move(parts);
  return e;
}

Expression Expression::choice(std::vector<Expression> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  Expression e;
  e.kind = Kind::Choice;
  e.parts = std::move(parts);
  return e;
}

Expression Expression::repeat(Expression part, uint32_t least, uint32_t most) {
  Expression e;
  e.kind = Kind::Repeat;
  e.least = least;
  e.most = most;
  e.parts.push_back(std::move(part));
  return e;
}

Expression Expression::call(uint32_t rule) {
  Expression e;
  e.kind = Kind::Rule;
  e.rule = rule;
  return e;
}

Expression Expression::of_graph(ByteGraph graph) {
  Expression e;
  e.kind = Kind::Graph;
  e.graph = std::move(graph);
  return e;
}

uint32_t GrammarRules::add(std::string name, Expression body) {
  rules.push_back({std::move(name), std::move(body)});
  return static_cast<uint32_t>(rules.size() - 1);
}

uint32_t GrammarRules::add(GrammarRules others) {
  const auto first = static_cast<uint32_t>(rules.size());
  for (GrammarRule& rule : others.rules) {
    shift_rules(rule.body, first);
    rules.push_back(std::move(rule));
  }
  return first + others.root;
}

}  // namespace moeflux
