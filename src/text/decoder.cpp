#include "text/decoder.h"

#include "base/error.h"
#include "base/json.h"
#include "text/sequence_depth.h"
#include "text/utf8.h"

namespace moeflux {
namespace {

// Far above what is published; without bounds, a few steps could make a token as long as memory.
constexpr size_t kMaxReplacementBytes = 64, kMaxTokenBytes = size_t{1} << 20;

std::string replace_all(std::string_view text, std::string_view what, std::string_view with) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find(what, done)) != std::string_view::npos; done = at + what.size()) {
    out += text.substr(done, at - done);
    out += with;
  }
  out += text.substr(done);
  return out;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// The byte that <0x00> to <0xFF> stand for, or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_value(token[3]), low = hex_value(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

Decoder::Decoder(const Json& json, const std::string& where) : where_(where) { add(json, where, 0); }

void Decoder::add(const Json& json, const std::string& where, int depth) {
  const JsonObject object(json, where);
  const std::string type = object.string("type");
  if (byte_level_) fail(Errc::Unsupported, "{}: '{}' after ByteLevel is not supported", where, type);
  if (strip_start_) fail(Errc::Unsupported, "{}: '{}' after Strip is not supported", where, type);
  if (type == "Sequence") {
    if (depth == kMaxSequenceDepth) fail(Errc::Corrupt, "{}: sequences inside each other", where);
    if (!object.at("decoders").is_array()) object.wrong("decoders", "an array");
    for (const Json& step : object.at("decoders")) add(step, where, depth + 1);
  } else if (type == "ByteLevel") {
    if (byte_fallback_ || !replacements_.empty() || !metaspace_.empty())
      fail(Errc::Unsupported, "{}: ByteLevel after another decoder is not supported", where);
    byte_level_ = true;
  } else if (type == "Replace") {
    const JsonObject pattern = object.object("pattern");
    if (!pattern.has("String")) fail(Errc::Unsupported, "{}: only Replace of a String is supported", where);
    if (byte_fallback_ || fused_ || !metaspace_.empty() || pattern.string("String").empty())
      fail(Errc::Unsupported, "{}: Replace after another decoder is not supported", where);
    if (object.string("content").size() > kMaxReplacementBytes)
      fail(Errc::Unsupported, "{}: a replacement of more than {} bytes", where, kMaxReplacementBytes);
    replacements_.emplace_back(pattern.string("String"), object.string("content"));
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Strip") {
    add_strip(json, where);
  } else if (type == "Metaspace") {
    if (byte_fallback_ || fused_ || !metaspace_.empty())
      fail(Errc::Unsupported, "{}: Metaspace after another decoder is not supported", where);
    metaspace_ = object.string("replacement");
    if (metaspace_.empty()) object.wrong("replacement", "one character");
    metaspace_drops_first_ =
        object.string_or("prepend_scheme", "always") != "never" && object.flag_or("add_prefix_space", true);
  } else {
    fail(Errc::Unsupported, "{}: the decoder '{}' is not supported", where, type);
  }
}

void Decoder::add_strip(const Json& json, const std::string& where) {
  const JsonObject object(json, where);
  if (!fused_) fail(Errc::Unsupported, "{}: Strip before Fuse is not supported", where);
  if (object.count_or("stop", 0, 0, UINT32_MAX) != 0)
    fail(Errc::Unsupported, "{}: Strip at the end of a text is not supported", where);
  strip_content_ = object.string("content");
  if (strip_content_.empty()) object.wrong("content", "one character");
  strip_start_ = object.count_or("start", 0, 0, UINT32_MAX);
}

std::string Decoder::replaced(std::string_view token, bool is_first) const {
  std::string text(token);
  for (const auto& [what, with] : replacements_) {
    if (text.size() > kMaxTokenBytes) fail(Errc::Unsupported, "{}: a token of {} bytes", where_, text.size());
    text = replace_all(text, what, with);
  }
  if (!metaspace_.empty())
    text = replace_all(text, metaspace_, is_first && metaspace_drops_first_ ? "" : " ");
  return text;
}

void Decoder::append(std::string_view token, Place& place, std::string& out) const {
  if (byte_level_) {
    out += token;
    return;
  }
  const std::string text = replaced(token, place.is_first);
  place.is_first = false;
  const int byte = byte_fallback_ ? fallback_byte(text) : -1;
  const char as_byte = static_cast<char>(static_cast<unsigned char>(byte < 0 ? 0 : byte));
  append_stripped(byte < 0 ? std::string_view(text) : std::string_view(&as_byte, 1), place, out);
}

void Decoder::append_literal(std::string_view text, Place& place, std::string& out) const {
  place.is_first = false;
  append_stripped(text, place, out);
}

void Decoder::append_stripped(std::string_view bytes, Place& place, std::string& out) const {
  while (place.n_may_strip > 0 && !bytes.empty()) {
    if (bytes.starts_with(strip_content_)) {
      bytes.remove_prefix(strip_content_.size());
      --place.n_may_strip;
    } else {
      place.n_may_strip = 0;
    }
  }
  out += bytes;
}

}  // namespace moeflux
