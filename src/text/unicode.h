// Sets of code points, and those that Unicode defines. Which version of Unicode they follow is decided in
// scripts/make_unicode_tables, which wrote the data.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace moeflux {

struct CodePointRange {
  uint32_t first, last;
};

// Sorted, disjoint ranges.
class CodePointSet {
 public:
  CodePointSet() = default;
  explicit CodePointSet(std::vector<CodePointRange> ranges);  // in any order, overlapping or not
  static CodePointSet of(uint32_t code_point) { return CodePointSet({{code_point, code_point}}); }
  static CodePointSet all() { return CodePointSet({{0, kMaxCodePoint}}); }

  void add(const CodePointSet& other);
  CodePointSet complement() const;
  CodePointSet intersection(const CodePointSet& other) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<CodePointRange>& ranges() const { return ranges_; }

 private:
  std::vector<CodePointRange> ranges_;
};

// A set made for asking: a table for ASCII, and bits in blocks of 256, of which equal ones are stored once.
class CharacterTest {
 public:
  explicit CharacterTest(const CodePointSet& set);

  bool ascii(unsigned char byte) const { return ascii_[byte] != 0; }  // byte < 0x80
  bool operator()(uint32_t code_point) const {
    const Block& block = blocks_[index_[code_point >> 8]];
    return (block[code_point >> 6 & 3] >> (code_point & 63) & 1) != 0;
  }
  // Whether the character at `at` is in the set; moves past it if so.
  bool take(const char*& at) const {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 0x80) {
      at += ascii_[byte];
      return ascii_[byte] != 0;
    }
    const char* after = at;
    if (!(*this)(next_code_point(after))) return false;
    at = after;
    return true;
  }

 private:
  using Block = std::array<uint64_t, 4>;
  std::array<uint8_t, 128> ascii_{};
  std::vector<uint16_t> index_;
  std::vector<Block> blocks_;
};

// A general category ("Lu"), a group of them ("L"), "Han" or "Alphabetic"; nothing for other names.
std::optional<CodePointSet> unicode_property(std::string_view name);
CodePointSet white_space_characters();
CodePointSet number_characters();  // N*, of a newer version of Unicode than unicode_property("N")
CodePointSet word_characters();    // letters, marks, digits, connectors, joiners

}  // namespace moeflux
