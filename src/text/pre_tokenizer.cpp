#include "text/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "text/normalizer.h"
#include "text/sequence_depth.h"
#include "text/unicode.h"

namespace moeflux {
namespace {

// What ByteLevel with use_regex splits by.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string number_pattern() {
  const CodePointSet numbers = number_characters();
  std::string set = "[";
  for (const CodePointRange& range : numbers.ranges())
    set += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", range.first, range.last);
  return set + "]";
}

}  // namespace

PreTokenizer::PreTokenizer(const Json* json, const std::string& where) {
  if (json) add(*json, where, 0);
}

PreTokenizer::Behaviour PreTokenizer::parse_behaviour(const std::string& name, const std::string& where) {
  if (name == "Removed") return Behaviour::Removed;
  if (name == "Isolated") return Behaviour::Isolated;
  if (name == "MergedWithPrevious") return Behaviour::MergedWithPrevious;
  if (name == "MergedWithNext") return Behaviour::MergedWithNext;
  if (name == "Contiguous") return Behaviour::Contiguous;
  fail(Errc::Unsupported, "{}: the behaviour '{}' is not supported", where, name);
}

void PreTokenizer::add(const Json& json, const std::string& where, int depth) {
  const JsonObject object(json, where);
  const std::string type = object.string("type");
  if (byte_level_) fail(Errc::Unsupported, "{}: '{}' after ByteLevel is not supported", where, type);
  if (type == "Sequence") {
    if (depth == kMaxSequenceDepth) fail(Errc::Corrupt, "{}: sequences inside each other", where);
    if (!object.at("pretokenizers").is_array()) object.wrong("pretokenizers", "an array");
    for (const Json& step : object.at("pretokenizers")) add(step, where, depth + 1);
  } else if (type == "Split") {
    steps_.emplace_back(Split{parse_pattern_field(object.at("pattern"), where),
                              parse_behaviour(object.string("behavior"), where),
                              object.flag_or("invert", false)});
  } else if (type == "Digits") {
    const bool each = object.flag_or("individual_digits", false);
    steps_.emplace_back(
        Split{Pattern(number_pattern(), where), each ? Behaviour::Isolated : Behaviour::Contiguous, false});
  } else if (type == "ByteLevel") {
    add_byte_level(json, where);
  } else if (type == "Metaspace") {
    add_metaspace(json, where);
  } else {
    fail(Errc::Unsupported, "{}: the pre-tokenizer '{}' is not supported", where, type);
  }
}

void PreTokenizer::add_byte_level(const Json& json, const std::string& where) {
  const JsonObject object(json, where);
  byte_level_ = true;
  if (object.flag_or("add_prefix_space", true)) steps_.emplace_back(PrefixSpace{});
  if (object.flag_or("use_regex", true))
    steps_.emplace_back(Split{Pattern(kByteLevelPattern, where), Behaviour::Isolated, false});
}

void PreTokenizer::add_metaspace(const Json& json, const std::string& where) {
  const JsonObject object(json, where);
  const std::string replacement = object.string("replacement");
  const char* at = replacement.data();
  if (replacement.empty() || (next_code_point(at), at != replacement.data() + replacement.size()))
    object.wrong("replacement", "one character");
  std::string scheme = object.string_or("prepend_scheme", "always");
  if (!object.flag_or("add_prefix_space", true)) {
    if (object.has("prepend_scheme") && scheme != "never")
      fail(Errc::Corrupt, "{}: add_prefix_space is false, but prepend_scheme is '{}'", where, scheme);
    scheme = "never";
  }
  using Prepend = Metaspace::Prepend;
  if (scheme != "always" && scheme != "never" && scheme != "first")
    fail(Errc::Unsupported, "{}: the prepend_scheme '{}' is not supported", where, scheme);
  const Prepend prepend = scheme == "always"  ? Prepend::Always
                          : scheme == "first" ? Prepend::First
                                              : Prepend::Never;
  steps_.emplace_back(
      Metaspace{replacement, prepend, object.flag_or("split", true), Pattern::literal(replacement, where)});
}

void PreTokenizer::split(std::string_view text, bool at_start, const Sink& sink) const {
  run(0, {text, at_start}, sink);
}

void PreTokenizer::run(size_t step, Piece piece, const Sink& sink) const {
  if (piece.text.empty()) return;
  if (step == steps_.size()) return sink(piece.text);
  std::visit([&](const auto& s) { run(s, step + 1, piece, sink); }, steps_[step]);
}

void PreTokenizer::run(const PrefixSpace&, size_t step, Piece piece, const Sink& sink) const {
  if (piece.text.starts_with(' ')) return run(step, piece, sink);
  std::string with_space(1, ' ');
  with_space += piece.text;
  run(step, {with_space, piece.at_start}, sink);
}

void PreTokenizer::run(const Metaspace& metaspace, size_t step, Piece piece, const Sink& sink) const {
  std::string text;
  for (const char c : piece.text) c == ' ' ? text += metaspace.replacement : text += c;
  const bool wanted = metaspace.prepend == Metaspace::Prepend::Always ||
                      (metaspace.prepend == Metaspace::Prepend::First && piece.at_start);
  if (wanted && !text.starts_with(metaspace.replacement)) text.insert(0, metaspace.replacement);
  if (!metaspace.split) return run(step, {text, piece.at_start}, sink);
  for (const Part& part : join_parts(find_parts(metaspace.pattern, text), Behaviour::MergedWithNext))
    run(step,
        {std::string_view(text).substr(part.begin, part.end - part.begin), piece.at_start && part.begin == 0},
        sink);
}

void PreTokenizer::run(const Split& split, size_t step, Piece piece, const Sink& sink) const {
  if (split.behaviour == Behaviour::Isolated) return isolate(split.pattern, step, piece, sink);
  std::vector<Part> parts = find_parts(split.pattern, piece.text);
  if (split.invert)
    for (Part& part : parts) part.is_match = !part.is_match;
  for (const Part& part : join_parts(std::move(parts), split.behaviour))
    run(step, {piece.text.substr(part.begin, part.end - part.begin), piece.at_start && part.begin == 0},
        sink);
}

// Matches and what is between them; the way of nearly all patterns, so that it keeps no list.
void PreTokenizer::isolate(const Pattern& pattern, size_t step, Piece piece, const Sink& sink) const {
  size_t done = 0;
  const auto hand_on = [&](size_t begin, size_t end) {
    run(step, {piece.text.substr(begin, end - begin), piece.at_start && begin == 0}, sink);
  };
  while (done < piece.text.size()) {
    const std::optional<Pattern::Match> match = pattern.find(piece.text, done);
    if (!match) break;
    if (match->begin != done) hand_on(done, match->begin);
    hand_on(match->begin, match->end);
    done = match->end;
  }
  hand_on(done, piece.text.size());
}

std::vector<PreTokenizer::Part> PreTokenizer::find_parts(const Pattern& pattern, std::string_view text) {
  std::vector<Part> parts;
  size_t done = 0;
  while (const std::optional<Pattern::Match> match = pattern.find(text, done)) {
    if (match->begin != done) parts.push_back({done, match->begin, false});
    parts.push_back({match->begin, match->end, true});
    done = match->end;
  }
  if (done != text.size()) parts.push_back({done, text.size(), false});
  return parts;
}

std::vector<PreTokenizer::Part> PreTokenizer::join_parts(std::vector<Part> parts, Behaviour behaviour) {
  if (behaviour == Behaviour::Isolated) return parts;
  if (behaviour == Behaviour::Removed) {
    std::erase_if(parts, [](const Part& part) { return part.is_match; });
    return parts;
  }
  // Merging with the next part is merging with the previous one, seen from the other end.
  const bool backwards = behaviour == Behaviour::MergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<Part> joined;
  bool previous = false;
  for (const Part& part : parts) {
    const bool joins =
        behaviour == Behaviour::Contiguous ? part.is_match == previous : part.is_match && !previous;
    if (joins && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, part.begin);
      joined.back().end = std::max(joined.back().end, part.end);
    } else {
      joined.push_back(part);
    }
    previous = part.is_match;
  }
  if (backwards) std::reverse(joined.begin(), joined.end());
  return joined;
}

}  // namespace moeflux
