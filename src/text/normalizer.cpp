#include "text/normalizer.h"

#include "base/error.h"
#include "base/json.h"
#include "text/normalise.h"
#include "text/sequence_depth.h"

namespace moeflux {
namespace {

constexpr size_t kMaxNormalizerSteps = 32;
// No published step makes a text more than three times as long. Without a bound, a few steps could fill any
// memory.
constexpr size_t kMaxGrowth = 4, kMaxGrowthBytes = 1 << 16;

}  // namespace

Pattern parse_pattern_field(const Json& json, const std::string& where) {
  const JsonObject pattern(json, where + ": pattern");
  if (pattern.has("String")) return Pattern::literal(pattern.string("String"), where);
  if (pattern.has("Regex")) return Pattern(pattern.string("Regex"), where);
  fail(Errc::Unsupported, "{}: the pattern is neither a String nor a Regex", where);
}

Normalizer::Normalizer(const Json* json, const std::string& where) : where_(where) {
  if (json) add(*json, where, 0);
}

void Normalizer::add(const Json& json, const std::string& where, int depth) {
  const JsonObject object(json, where);
  const std::string type = object.string("type");
  if (steps_.size() == kMaxNormalizerSteps)
    fail(Errc::Unsupported, "{}: more than {} steps", where, kMaxNormalizerSteps);
  if (type == "Sequence") {
    if (depth == kMaxSequenceDepth) fail(Errc::Corrupt, "{}: sequences inside each other", where);
    if (!object.at("normalizers").is_array()) object.wrong("normalizers", "an array");
    for (const Json& step : object.at("normalizers")) add(step, where, depth + 1);
  } else if (type == "NFC") {
    steps_.emplace_back(Nfc{});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{object.string("prepend")});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{parse_pattern_field(object.at("pattern"), where), object.string("content")});
  } else {
    fail(Errc::Unsupported, "{}: the normaliser '{}' is not supported", where, type);
  }
}

bool Normalizer::change(const Nfc&, std::string_view text, std::string& out) {
  if (!may_need_nfc(text)) return false;
  out = nfc(text);
  return true;
}

bool Normalizer::change(const Prepend& step, std::string_view text, std::string& out) {
  if (text.empty()) return false;
  out = step.text;
  out += text;
  return true;
}

bool Normalizer::change(const Replace& step, std::string_view text, std::string& out) const {
  std::optional<Pattern::Match> match = step.pattern.find(text, 0);
  if (!match) return false;
  out.clear();
  out.reserve(text.size() * 2);
  size_t done = 0;
  for (; match; match = step.pattern.find(text, done)) {
    out += text.substr(done, match->begin - done);
    out += step.with;
    done = match->end;
    if (out.size() > kMaxGrowth * text.size() + kMaxGrowthBytes)
      fail(Errc::Unsupported, "{}: makes a text of {} bytes more than {} times as long", where_, text.size(),
           kMaxGrowth);
  }
  out += text.substr(done);
  return true;
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer) const {
  for (const Step& step : steps_) {
    std::string changed;
    if (!std::visit([&](const auto& s) { return change(s, text, changed); }, step)) continue;
    buffer = std::move(changed);
    text = buffer;
  }
  return text;
}

}  // namespace moeflux
