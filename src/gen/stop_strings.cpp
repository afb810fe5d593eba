#include "gen/stop_strings.h"

#include <algorithm>
#include <utility>

namespace moeflux {

StopStrings::Matcher::Matcher(std::string s) : string(std::move(s)), fallback(string.size() + 1) {
  size_t length = 0;
  for (size_t i = 1; i < string.size(); ++i) {
    while (length > 0 && string[i] != string[length]) length = fallback[length];
    length += string[i] == string[length];
    fallback[i + 1] = length;
  }
}

void StopStrings::Matcher::advance(char byte) {
  while (matched > 0 && string[matched] != byte) matched = fallback[matched];
  matched += string[matched] == byte;
}

StopStrings::StopStrings(std::vector<std::string> strings) {
  for (std::string& s : strings)
    if (!s.empty()) matchers_.emplace_back(std::move(s));
}

// The longest stop string that ends with this byte.
const StopStrings::Matcher* StopStrings::advance(char byte) {
  const Matcher* found = nullptr;
  for (Matcher& m : matchers_) {
    m.advance(byte);
    if (m.whole() && (!found || m.string.size() > found->string.size())) found = &m;
  }
  return found;
}

StopStrings::Released StopStrings::feed(std::string_view piece) {
  if (stopped_) return {};
  if (matchers_.empty()) return {std::string(piece)};
  for (const char byte : piece) {
    held_ += byte;
    if (const Matcher* found = advance(byte)) {
      held_.resize(held_.size() - found->string.size());
      stopped_ = true;
      return {std::exchange(held_, {}), &found->string};
    }
  }
  size_t keep = 0;
  for (const Matcher& m : matchers_) keep = std::max(keep, m.matched);
  Released out{held_.substr(0, held_.size() - keep)};
  held_.erase(0, out.text.size());
  return out;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace moeflux
