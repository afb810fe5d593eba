// The syntax tree of a Pattern. Only pattern.cpp compiles it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace moeflux {

struct PatternExpression {
  enum class Kind {
    Characters,    // `least` to `most` characters of `set`
    Sequence,      // all of `parts`, in order
    Alternatives,  // the first of `parts` that matches
    Optional,      // parts[0] or nothing
    LookAhead,     // parts[0] follows; with `negative`, does not follow
    LineEnd,       // a newline or the end follows
  };
  static constexpr uint32_t kUnbounded = UINT32_MAX;

  Kind kind = Kind::Sequence;
  CodePointSet set;
  uint32_t least = 1, most = 1;
  bool lazy = false;        // as few as possible, or nothing first
  bool possessive = false;  // never gives back
  bool negative = false;
  std::vector<PatternExpression> parts;
};

// Throws Error{Unsupported} naming what is not known, Error{Corrupt} naming what is broken.
PatternExpression parse_pattern(std::string_view expression, const std::string& where);

}  // namespace moeflux
