#include "text/utf8.h"

#include <cstring>

namespace moeflux {
namespace {

enum class Form { Whole, Broken, Unfinished };

struct Sequence {
  Form form;
  size_t bytes;  // of the character; of the part that could have begun one; of what there is so far
};

struct ByteRange {
  unsigned char least, most;
};

// Which second byte may follow a lead byte: this is what excludes surrogates, too large code points and
// characters that are written longer than needed.
ByteRange second_byte(unsigned char lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

Sequence sequence_at(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = sequence_length(lead);
  if (length == 0) return {Form::Broken, 1};
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Form::Unfinished, i};
    const auto byte = static_cast<unsigned char>(text[i]);
    const ByteRange range = i == 1 ? second_byte(lead) : ByteRange{0x80, 0xBF};
    if (byte < range.least || byte > range.most) return {Form::Broken, i};
  }
  return {Form::Whole, length};
}

// Copies whole characters, replaces broken ones, and returns what is unfinished at the end.
std::string_view assemble(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const size_t good = well_formed_bytes(text);
    out += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    const Sequence bad = sequence_at(text);
    if (bad.form == Form::Unfinished) return text;
    out += kReplacementCharacter;
    text.remove_prefix(bad.bytes);
  }
  return {};
}

}  // namespace

void append_utf8(std::string& text, uint32_t code_point) {
  const auto put = [&text](uint32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

size_t well_formed_bytes(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t at = 0;
  while (at < text.size()) {
    if (text.size() - at >= 8) {
      uint64_t eight;
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & kHighBits) == 0) {
        at += 8;
        continue;
      }
    }
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Sequence sequence = sequence_at(text.substr(at));
    if (sequence.form != Form::Whole) return at;
    at += sequence.bytes;
  }
  return at;
}

std::string replace_ill_formed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (!assemble(text, out).empty()) out += kReplacementCharacter;
  return out;
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  if (held_.empty()) {
    held_ = assemble(bytes, out);
    return;
  }
  held_ += bytes;
  const std::string all = std::move(held_);
  held_ = assemble(all, out);
}

void Utf8Assembler::finish(std::string& out) {
  if (!held_.empty()) out += kReplacementCharacter;
  held_.clear();
}

}  // namespace moeflux
