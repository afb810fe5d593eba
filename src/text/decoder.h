// How tokens become text: the `decoder` of a tokenizer.json. Tokens are turned into bytes one by one; only
// what is done to the text as a whole (a space that is taken off its start) needs to know how far the text
// has come.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_fwd.h"

namespace moeflux {

class Decoder {
 public:
  // Throws Error{Unsupported} naming a type that is not known, or an order of steps that is not.
  Decoder(const Json& json, const std::string& where);

  bool byte_level() const { return byte_level_; }

  // Where in a text the next token stands.
  struct Place {
    bool is_first = true;      // no token before it
    uint64_t n_may_strip = 0;  // how many more characters may be taken off the start
  };
  Place start() const { return {true, strip_start_}; }

  // Appends the bytes of a token with this spelling; for a byte-level vocabulary, these bytes.
  void append(std::string_view token, Place& place, std::string& out) const;
  // Appends text that stands for itself, an added token's.
  void append_literal(std::string_view text, Place& place, std::string& out) const;

 private:
  void add(const Json& json, const std::string& where, int depth);
  void add_strip(const Json& json, const std::string& where);
  void append_stripped(std::string_view bytes, Place& place, std::string& out) const;
  std::string replaced(std::string_view token, bool is_first) const;

  bool byte_level_ = false, byte_fallback_ = false, fused_ = false;
  std::string where_;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::string metaspace_;               // the character that stands for a space; empty: none
  bool metaspace_drops_first_ = false;  // ... but for nothing in the first token
  std::string strip_content_;
  uint64_t strip_start_ = 0;
};

}  // namespace moeflux
