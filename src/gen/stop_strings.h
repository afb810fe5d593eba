// Looks for stop strings in text that comes in pieces. Text that may still become a stop string is held back,
// and nothing else; what does not become one comes out unchanged. The result does not depend on where the
// text was cut. Matches bytes: with stop strings and pieces of whole UTF-8 characters, whole characters come
// out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moeflux {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings);  // empty ones are left out

  struct Released {
    std::string text;                   // safe to show
    const std::string* stop = nullptr;  // the stop string that came after it; it is not part of the text
  };

  // The stop string whose end comes first ends the text; of those that end together, the longest. What
  // follows it, in this piece or later, is dropped.
  Released feed(std::string_view piece);
  // The text has ended: what was held back.
  std::string finish();

  size_t held_bytes() const { return held_.size(); }
  bool stopped() const { return stopped_; }

 private:
  // One string with its Knuth-Morris-Pratt table: fallback[n] is the length of the longest proper beginning
  // of the string that also ends its first n bytes.
  struct Matcher {
    std::string string;
    std::vector<size_t> fallback;
    size_t matched = 0;  // bytes of the string that end the text so far

    explicit Matcher(std::string s);
    void advance(char byte);
    bool whole() const { return matched == string.size(); }
  };

  const Matcher* advance(char byte);

  std::vector<Matcher> matchers_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace moeflux
