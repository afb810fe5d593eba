// UTF-8: reading and writing code points, and what becomes of bytes that are none. Ill-formed bytes are read
// as U+FFFD, one for each maximal part that could have begun a character, as most decoders do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moeflux {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";
inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

// Reads the code point at `at` and moves past it. The text must be well-formed and not at its end.
inline uint32_t next_code_point(const char*& at) {
  const auto byte = [&at](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(at[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) {
    at += 1;
    return lead;
  }
  if (lead < 0xE0) {
    const uint32_t point = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    at += 2;
    return point;
  }
  if (lead < 0xF0) {
    const uint32_t point = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    at += 3;
    return point;
  }
  const uint32_t point =
      (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  at += 4;
  return point;
}

// Moves back to the start of the character before `at`, in well-formed text.
inline const char* previous_character(const char* at) {
  do --at;
  while ((static_cast<unsigned char>(*at) & 0xC0) == 0x80);
  return at;
}

void append_utf8(std::string& text, uint32_t code_point);

// How many bytes at the start are well-formed; all of them for good text.
size_t well_formed_bytes(std::string_view text);

std::string replace_ill_formed(std::string_view text);

// Makes well-formed text of bytes that come in pieces: a character that is not whole yet is held back.
class Utf8Assembler {
 public:
  void push(std::string_view bytes, std::string& out);  // appends what is complete
  void finish(std::string& out);                        // what is still held back was no character

 private:
  std::string held_;
};

}  // namespace moeflux
