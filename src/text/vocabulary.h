// The tokens of a BPE model: their bytes by id, and ids by bytes.
//
// A byte-level vocabulary spells each byte as one printable character. Tokens are kept as the bytes that they
// stand for, so that text is never mapped to that alphabet. A token with other characters (some published
// vocabularies list their markers) stands for its own spelling and is not found as bytes: no text is mapped
// to it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/token.h"
#include "text/token_key.h"

namespace moeflux {

class JsonReader;

inline constexpr Token kNoToken = UINT32_MAX;
inline constexpr Token kMaxToken = (1u << 22) - 1;  // more than any vocabulary, less than would fill memory

// A byte-level spelling as bytes; false where it has a character of no byte.
bool bytes_of_spelling(std::string_view spelling, std::string& bytes);

class Vocabulary {
 public:
  // Reads the object at the reader's place. Throws Error{Corrupt} for tokens or ids that stand twice.
  Vocabulary(JsonReader& reader, bool byte_level, const std::string& where);

  Token find(std::string_view bytes) const { return find(TokenKey::of(bytes), bytes); }
  Token find(const TokenKey& key, std::string_view bytes) const;  // kNoToken where there is none
  Token find_spelling(std::string_view spelling) const;
  bool has(Token id) const { return id < tokens_.size() && tokens_[id].begin != kAbsent; }
  std::string_view bytes(Token id) const {
    return std::string_view(text_).substr(tokens_[id].begin, tokens_[id].length);
  }
  size_t n_tokens() const { return n_tokens_; }
  Token end_id() const { return static_cast<Token>(tokens_.size()); }  // above all ids
  bool byte_level() const { return byte_level_; }

 private:
  struct Span {
    uint32_t begin, length;
  };
  struct Slot {
    TokenKey key;
    Token id = kNoToken;
  };
  static constexpr uint32_t kAbsent = UINT32_MAX;

  void add(std::string_view spelling, uint64_t id, const std::string& where);
  void insert(const TokenKey& key, Token id);
  void grow();

  bool byte_level_;
  size_t n_tokens_ = 0;
  std::string text_;          // of all tokens
  std::vector<Span> tokens_;  // by id
  std::vector<Slot> slots_;   // open addressing, at most two thirds full
  size_t n_slots_used_ = 0;
  std::unordered_map<std::string, Token> literal_;  // byte-level only: spellings that are no bytes
};

}  // namespace moeflux
