// Cuts a template into tokens: text, and the contents of {{ }} and {% %}. Whitespace control is done here, as
// chat templates expect it: a newline after a block tag is dropped, so is white space between the start of a
// line and a block tag, and `-` and `+` override both. Comments and raw blocks do not leave the lexer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace moeflux::jinja {

struct Token {
  enum class Kind : uint8_t {
    Data,
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name,
    StringLiteral,
    IntegerLiteral,
    FloatLiteral,
    Operator,
    End
  };
  Kind kind = Kind::End;
  std::string text;  // of data, names, strings (unescaped) and operators
  Integer integer = 0;
  double floating = 0;
  uint32_t line = 1;
};

// Refusal with a line, which the parser also throws.
struct SyntaxRefusal : Refusal {
  SyntaxRefusal(uint32_t at_line, const std::string& what) : Refusal(what), line(at_line) {}
  uint32_t line;
};

inline constexpr size_t kMaxSourceBytes = size_t{4} << 20;

std::vector<Token> tokenize(std::string_view source);
std::string describe(const Token& token);

}  // namespace moeflux::jinja
