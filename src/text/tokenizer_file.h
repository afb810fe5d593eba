// A tokenizer.json as it lies on disk: its small fields as JSON, its two large tables still as text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "text/added_tokens.h"
#include "text/bpe.h"

namespace moeflux {

struct TokenizerFile {
  // The text must outlive it. Throws Error{Corrupt}.
  TokenizerFile(std::string_view text, const std::string& where);
  ~TokenizerFile();

  const Json* field(const char* name) const;  // null where absent or null
  std::vector<AddedToken> added_tokens(const std::string& where) const;
  BpeOptions bpe_options(const std::string& where) const;  // refuses other models than BPE

  std::string_view vocabulary, merges;

 private:
  void read_model(class JsonReader& reader, const std::string& where);

  std::unique_ptr<Json> fields_, model_;
};

// The ids that a post-processor puts around a text.
struct Surroundings {
  std::vector<Token> before, after;
};
Surroundings parse_post_processor(const Json* json, const std::string& where);

}  // namespace moeflux
