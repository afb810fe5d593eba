#include "text/json_reader.h"

#include "base/error.h"
#include "text/utf8.h"

namespace moeflux {
namespace {

constexpr int kMaxNesting = 64;

}  // namespace

void JsonReader::wrong(std::string_view what) const {
  fail(Errc::Corrupt, "{}: not valid JSON at byte {}: {}", where_, at_, what);
}

void JsonReader::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

char JsonReader::peek() {
  skip_space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool JsonReader::take(char c) {
  if (peek() != c || at_ == text_.size()) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char c) {
  if (!take(c)) wrong(fmt::format("want '{}'", c));
}

void JsonReader::end() {
  skip_space();
  if (at_ != text_.size()) wrong("something follows the end");
}

std::string_view JsonReader::string() {
  expect('"');
  const size_t begin = at_;
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (c == '"') return text_.substr(begin, at_++ - begin);
    if (c == '\\') return unescaped(begin);
    if (static_cast<unsigned char>(c) < 0x20) break;
  }
  wrong("a string without its end");
}

std::string_view JsonReader::unescaped(size_t begin) {
  buffer_.assign(text_.substr(begin, at_ - begin));
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return buffer_;
    if (static_cast<unsigned char>(c) < 0x20) break;
    if (c == '\\')
      append_escape();
    else
      buffer_ += c;
  }
  wrong("a string without its end");
}

void JsonReader::append_escape() {
  const char c = at_ < text_.size() ? text_[at_++] : '\0';
  switch (c) {
    case '"':
    case '\\':
    case '/':
      buffer_ += c;
      return;
    case 'b':
      buffer_ += '\b';
      return;
    case 'f':
      buffer_ += '\f';
      return;
    case 'n':
      buffer_ += '\n';
      return;
    case 'r':
      buffer_ += '\r';
      return;
    case 't':
      buffer_ += '\t';
      return;
    case 'u':
      break;
    default:
      wrong("an unknown escape");
  }
  uint32_t point = hexadecimal();
  if (point >= 0xD800 && point <= 0xDBFF) {
    if (text_.substr(at_, 2) != "\\u") wrong("half a surrogate pair");
    at_ += 2;
    const uint32_t low = hexadecimal();
    if (low < 0xDC00 || low > 0xDFFF) wrong("half a surrogate pair");
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  } else if (point >= 0xDC00 && point <= 0xDFFF) {
    wrong("half a surrogate pair");
  }
  append_utf8(buffer_, point);
}

uint32_t JsonReader::hexadecimal() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    if (c >= '0' && c <= '9')
      value = value * 16 + static_cast<uint32_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = value * 16 + static_cast<uint32_t>(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F')
      value = value * 16 + static_cast<uint32_t>(c - 'A' + 10);
    else
      wrong("an escape that is not hexadecimal");
  }
  return value;
}

uint64_t JsonReader::number() {
  skip_space();
  const size_t begin = at_;
  uint64_t value = 0;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
    if (at_ - begin == 18) wrong("a number that is too large");
    value = value * 10 + static_cast<uint64_t>(text_[at_++] - '0');
  }
  const char after = at_ < text_.size() ? text_[at_] : '\0';
  if (at_ == begin || after == '.' || after == 'e' || after == 'E') wrong("want a whole number");
  return value;
}

std::string_view JsonReader::skip() {
  skip_space();
  const size_t begin = at_;
  skip_value(0);
  return text_.substr(begin, at_ - begin);
}

// Only as strict as finding the end calls for: what is skipped is read by someone else.
void JsonReader::skip_value(int depth) {
  if (depth > kMaxNesting) wrong(fmt::format("nested deeper than {} levels", kMaxNesting));
  const char c = peek();
  if (c == '{') {
    object([&](std::string_view) { skip_value(depth + 1); });
  } else if (c == '[') {
    array([&] { skip_value(depth + 1); });
  } else if (c == '"') {
    string();
  } else {
    const size_t begin = at_;
    while (at_ < text_.size() && std::string_view(",]} \n\r\t").find(text_[at_]) == std::string_view::npos)
      ++at_;
    if (at_ == begin) wrong("want a value");
  }
}

}  // namespace moeflux
