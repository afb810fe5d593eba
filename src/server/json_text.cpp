#include "server/json_text.h"

#include <utility>

namespace moeflux {
namespace {

// U+0085, U+2028 and U+2029 end lines for some readers. They can stand inside strings only.
std::string without_line_ends(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kEnds[] = {
      {"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}};
  for (const auto& [bytes, escape] : kEnds)
    for (size_t at = text.find(bytes); at != text.npos; at = text.find(bytes, at + escape.size()))
      text.replace(at, bytes.size(), escape);
  return text;
}

template <class AnyJson>
std::string dump(const AnyJson& json) {
  return without_line_ends(json.dump(-1, ' ', false, AnyJson::error_handler_t::replace));
}

}  // namespace

std::string json_text(const OrderedJson& json) { return dump(json); }
std::string json_text(const Json& json) { return dump(json); }

std::string sse_event(const OrderedJson& data, std::string_view name) {
  std::string out;
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  return out.append("data: ").append(json_text(data)).append("\n\n");
}

}  // namespace moeflux
