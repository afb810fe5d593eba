// Regular expressions of pre-tokenizers: the part of Oniguruma's syntax that tokenizers use, on well-formed
// UTF-8. Sets, groups, alternatives (the first that matches wins), repeated characters, look-ahead, (?i:...)
// for ASCII. What is outside it (back references, look-behind, repeated groups) is refused by name, since a
// pattern that is read differently gives other ids.
//
// Written for the patterns that there are rather than as a general engine: a repeated set gives characters
// back only where that can make a difference, and an alternative is tried only where its first character
// fits.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace moeflux {

class Pattern {
 public:
  // `where` is for messages. Throws Error{Unsupported} for syntax that is not known, and for an expression
  // that could match nothing at all; Error{Corrupt} for one that is broken.
  Pattern(std::string_view expression, const std::string& where);
  static Pattern literal(std::string_view text, const std::string& where);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  struct Match {
    size_t begin, end;
  };
  // The first match that starts at `from` or later. Throws Error{Unsupported} if an expression tries so many
  // ways that it would never end.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Program;
  explicit Pattern(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

}  // namespace moeflux
