#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace moeflux {
namespace {

const CharacterTest& white_space() {
  static const CharacterTest test(white_space_characters());
  return test;
}

const CharacterTest& word() {
  static const CharacterTest test(word_characters());
  return test;
}

bool starts_with_word(std::string_view text) {
  const char* at = text.data();
  return !text.empty() && word().take(at);
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  const char* last = previous_character(text.data() + text.size());
  return word().take(last);
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  return !ends_with_word(text.substr(0, begin)) && !starts_with_word(text.substr(end));
}

size_t before_white_space(std::string_view text, size_t at) {
  while (at > 0) {
    const char* const last = previous_character(text.data() + at);
    const char* after = last;
    if (!white_space().take(after)) break;
    at = static_cast<size_t>(last - text.data());
  }
  return at;
}

size_t after_white_space(std::string_view text, size_t at) {
  const char *after = text.data() + at, *const end = text.data() + text.size();
  while (after != end && white_space().take(after)) continue;
  return static_cast<size_t>(after - text.data());
}

}  // namespace

bool AddedToken::is_white_space() const { return after_white_space(content, 0) == content.size(); }

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized)
    : nodes_(1), starts_(256) {
  for (const AddedToken& token : tokens)
    if (token.normalized == normalized && !token.pattern.empty()) add(token);
}

void AddedTokenFinder::add(const AddedToken& token) {
  uint32_t node = 0;
  for (const char c : token.pattern) {
    const auto byte = static_cast<unsigned char>(c);
    if (const uint32_t* next = child(node, byte)) {
      node = *next;
      continue;
    }
    const auto added = static_cast<uint32_t>(nodes_.size());
    nodes_[node].edges.push_back({byte, added});
    nodes_.emplace_back();
    node = added;
  }
  nodes_[node].token = &token;
  starts_[static_cast<unsigned char>(token.pattern[0])] = true;
  has_white_space_ |= token.is_white_space();
}

const uint32_t* AddedTokenFinder::child(uint32_t node, unsigned char byte) const {
  for (const Edge& edge : nodes_[node].edges)
    if (edge.byte == byte) return &edge.node;
  return nullptr;
}

bool AddedTokenFinder::find(std::string_view text, size_t from, Match& match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    match.token = nullptr;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size();) {
      const uint32_t* next = child(node, static_cast<unsigned char>(text[at++]));
      if (!next) break;
      node = *next;
      if (nodes_[node].token) match = {nodes_[node].token, begin, at};
    }
    if (match.token) return true;
  }
  return false;
}

// Matches follow each other in the text, whatever white space they take; so does the reference.
void AddedTokenFinder::split(std::string_view text, const Allowed& allowed, const Sink& sink) const {
  size_t done = 0;
  Match match{};
  for (size_t from = 0; find(text, from, match); from = match.end) {
    const AddedToken& token = *match.token;
    if (!allowed(token, match.begin, match.end)) continue;
    if (token.single_word && !is_single_word(text, match.begin, match.end)) continue;
    const size_t begin = token.lstrip ? std::max(before_white_space(text, match.begin), done) : match.begin;
    if (done < begin) sink.text(done, begin);
    sink.token(token.id);
    done = token.rstrip ? after_white_space(text, match.end) : match.end;
  }
  if (done != text.size()) sink.text(done, text.size());
}

}  // namespace moeflux
