#include "text/json_schema_strings.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace moeflux {
namespace {

using E = Expression;

bool must_be_escaped(uint32_t code) { return code < 0x20 || code == '"' || code == '\\'; }

std::string escape_of(uint32_t code) {
  switch (code) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", code);
  }
}

CodeRanges plain_characters() { return complement(normalise({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})); }

CodeRanges common(const CodeRanges& a, const CodeRanges& b) {
  CodeRanges out;
  for (const CodeRange& x : a)
    for (const CodeRange& y : b)
      if (std::max(x.low, y.low) <= std::min(x.high, y.high))
        out.push_back({std::max(x.low, y.low), std::min(x.high, y.high)});
  return out;
}

E spelled_class(const CodeRanges& ranges) {
  std::vector<E> escapes;
  for (uint32_t code = 0; code <= '\\'; ++code)
    if (must_be_escaped(code) && contains(ranges, code)) escapes.push_back(E::literal(escape_of(code)));
  E plain = E::one_of(common(ranges, plain_characters()));
  if (escapes.empty()) return plain;
  return E::choice({std::move(plain), E::choice(std::move(escapes))});
}

E hex_digit(std::string_view digits = "0123456789abcdef") {
  CodeRanges ranges;
  for (const char c : digits) {
    ranges.push_back({static_cast<uint32_t>(c), static_cast<uint32_t>(c)});
    if (c >= 'a') ranges.push_back({static_cast<uint32_t>(c - 32), static_cast<uint32_t>(c - 32)});
  }
  return E::one_of(normalise(std::move(ranges)));
}

// Escapes of one state share their beginnings: few states are then added for each.
class GraphSpeller {
 public:
  explicit GraphSpeller(size_t n_states) { out_.states.resize(n_states); }

  void add_state(uint32_t id, const ByteGraph::State& state) {
    out_.states[id].accepting = state.accepting;
    prefixes_.clear();
    for (const ByteEdge& edge : state.edges) {
      for (const CodeRange& plain : {CodeRange{0x20, 0x21}, CodeRange{0x23, 0x5B}, CodeRange{0x5D, 0xFF}}) {
        const uint32_t low = std::max<uint32_t>(edge.low, plain.low);
        const uint32_t high = std::min<uint32_t>(edge.high, plain.high);
        if (low <= high)
          out_.states[id].edges.push_back(
              {static_cast<uint8_t>(low), static_cast<uint8_t>(high), edge.target});
      }
      for (uint32_t code = edge.low; code <= std::min<uint32_t>(edge.high, '\\'); ++code)
        if (must_be_escaped(code)) add_escape(id, escape_of(code), edge.target);
    }
  }

  ByteGraph take() { return std::move(out_); }

 private:
  void add_escape(uint32_t from, const std::string& escape, uint32_t target) {
    for (size_t i = 1; i < escape.size(); ++i) {
      const auto [it, is_new] =
          prefixes_.try_emplace(escape.substr(0, i), static_cast<uint32_t>(out_.states.size()));
      if (is_new) {
        out_.states.emplace_back();
        add_edge(from, escape[i - 1], it->second);
      }
      from = it->second;
    }
    add_edge(from, escape.back(), target);
  }

  void add_edge(uint32_t from, char c, uint32_t target) {
    const auto byte = static_cast<uint8_t>(c);
    std::vector<ByteEdge>& edges = out_.states[from].edges;
    if (!edges.empty() && edges.back().target == target && edges.back().high + 1 == byte)
      edges.back().high = byte;
    else
      edges.push_back({byte, byte, target});
  }

  ByteGraph out_;
  std::map<std::string, uint32_t> prefixes_;  // of the escapes of the state at hand
};

// formats

constexpr const char* kDate =
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-"
    "29)";
constexpr const char* kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr const char* kLabel = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
constexpr const char* kOctet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
constexpr const char* kAtom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,30}";
constexpr const char* kPathCharacter = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
constexpr const char* kQueryCharacter = "([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})";

std::string duration() {
  const std::string n = "[0-9]{1,9}";
  const std::string time = "T(" + n + "H(" + n + "M(" + n + "S)?)?|" + n + "M(" + n + "S)?|" + n + "S)";
  const std::string date = "(" + n + "Y(" + n + "M(" + n + "D)?)?|" + n + "M(" + n + "D)?|" + n + "D)";
  return "P(" + date + "(" + time + ")?|" + time + "|" + n + "W)";
}

std::string ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string out = "(" + group + ":){7}" + group;
  for (int before = 0; before <= 7; ++before) {  // groups before "::", which stands for one group at least
    const std::string left = before == 0 ? "" : group + "(:" + group + fmt::format("){{{}}}", before - 1);
    const int after = 7 - before;
    const std::string right =
        after == 0 ? "" : "(" + group + "(:" + group + fmt::format("){{0,{}}})?", after - 1);
    out += "|" + left + "::" + right;
  }
  return out;
}

std::string uri() {
  const std::string host = std::string(kLabel) + "(\\." + kLabel + "){0,5}";
  const std::string tail =
      fmt::format("(/{}*)*(\\?{}*)?(#{}*)?", kPathCharacter, kQueryCharacter, kQueryCharacter);
  const std::string scheme = "[A-Za-z][A-Za-z0-9+.-]{0,15}:";
  return scheme + "//" + host + "(:[0-9]{1,5})?" + tail + "|" + scheme + kPathCharacter + "+" + tail;
}

std::string base64() { return "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"; }

struct Format {
  const char* name;
  std::string (*pattern)();
};

constexpr Format kFormats[] = {
    {"date", [] { return std::string(kDate); }},
    {"time", [] { return std::string(kTime); }},
    {"date-time", [] { return std::string(kDate) + "T" + kTime; }},
    {"duration", duration},
    {"uuid", [] { return std::string("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"); }},
    {"email", [] { return fmt::format("{0}(\\.{0}){{0,1}}@{1}(\\.{1}){{1,3}}", kAtom, kLabel); }},
    {"hostname", [] { return fmt::format("{0}(\\.{0}){{0,2}}", kLabel); }},
    {"ipv4", [] { return fmt::format("{0}(\\.{0}){{3}}", kOctet); }},
    {"ipv6", ipv6},
    {"uri", uri},
    {"byte", base64},
    {"base64", base64},
};

}  // namespace

Expression string_character() {
  const E any = hex_digit(),
          low_surrogate = E::sequence({E::literal("\\u"), hex_digit("d"), hex_digit("cdef"), any, any});
  const E four = E::choice({E::sequence({hex_digit("0123456789abcef"), any, any, any}),
                            E::sequence({hex_digit("d"), hex_digit("01234567"), any, any}),
                            E::sequence({hex_digit("d"), hex_digit("89ab"), any, any, low_surrogate})});
  CodeRanges after_backslash;
  for (const char c : std::string_view("\"\\/bfnrt"))
    after_backslash.push_back({static_cast<uint32_t>(c), static_cast<uint32_t>(c)});
  const E escape = E::choice({E::one_of(normalise(after_backslash)), E::sequence({E::literal("u"), four})});
  return E::choice({E::one_of(plain_characters()), E::sequence({E::literal("\\"), escape})});
}

std::string spelled(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (must_be_escaped(byte))
      out += escape_of(byte);
    else
      out.push_back(c);
  }
  return out;
}

std::string quoted_text(std::string_view text) {
  std::string out = spelled(text);
  out.insert(out.begin(), '"');
  out.push_back('"');
  return out;
}

Expression spelled(const Expression& text) {
  Expression out = text;
  if (text.kind == E::Kind::Literal) out.bytes = spelled(text.bytes);
  if (text.kind == E::Kind::Class) return spelled_class(text.ranges);
  if (text.kind == E::Kind::Graph) out.graph = spelled(text.graph);
  for (Expression& part : out.parts) part = spelled(part);
  return out;
}

ByteGraph spelled(const ByteGraph& text) {
  GraphSpeller speller(text.states.size());
  for (uint32_t state = 0; state < text.states.size(); ++state) speller.add_state(state, text.states[state]);
  return speller.take();
}

std::optional<std::string> format_pattern(std::string_view format) {
  for (const Format& known : kFormats)
    if (format == known.name) return "^(" + known.pattern() + ")$";
  return std::nullopt;
}

std::string known_formats() {
  std::string out;
  for (const Format& known : kFormats) out += (out.empty() ? "" : ", ") + std::string(known.name);
  return out;
}

}  // namespace moeflux
