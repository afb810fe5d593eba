#include "text/grammar_utf8.h"

#include <string>

namespace moeflux {
namespace {

void append(std::vector<Utf8Sequence>& out, uint32_t low, uint32_t high) {
  std::string first, last;
  append_utf8(first, low);
  append_utf8(last, high);
  Utf8Sequence sequence;
  sequence.length = first.size();
  for (size_t i = 0; i < first.size(); ++i)
    sequence.ranges[i] = {static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])};
  out.push_back(sequence);
}

// Cuts a range until, in all its members, the bytes can be chosen independently of each other.
void cut(std::vector<Utf8Sequence>& out, uint32_t low, uint32_t high) {
  for (const uint32_t last : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (low > last || high <= last) continue;
    cut(out, low, last);
    return cut(out, last + 1, high);
  }
  for (uint32_t bits = 6; high > 0x7F && bits <= 18; bits += 6) {
    const uint32_t mask = (1u << bits) - 1;
    if ((low & ~mask) == (high & ~mask)) break;
    if ((low & mask) != 0) {
      cut(out, low, low | mask);
      return cut(out, (low | mask) + 1, high);
    }
    if ((high & mask) != mask) {
      cut(out, low, (high & ~mask) - 1);
      return cut(out, high & ~mask, high);
    }
  }
  append(out, low, high);
}

}  // namespace

std::vector<Utf8Sequence> utf8_sequences(const CodeRanges& normal) {
  std::vector<Utf8Sequence> out;
  for (const CodeRange& range : normal) cut(out, range.low, range.high);
  return out;
}

}  // namespace moeflux
