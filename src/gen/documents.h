// Files of token ids to evaluate: JSONL or plain text, one document per line. Everything is checked here
// except whether an id is in a model's vocabulary, which only a model knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file.h"
#include "model/backend.h"

namespace moeflux {

struct Document {
  uint64_t line;  // in the file, counted from 1
  std::vector<Token> tokens;
};

struct Documents {
  std::string source;  // the file, for messages
  std::vector<Document> list;
  uint64_t n_tokens() const;
};

// A line is a JSON array of ids; a JSON object whose field `ids`, `input_ids`, `token_ids` or `tokens` is
// such an array; or ids separated by commas or white space. Blank lines are passed over. Text instead of ids
// is refused: here is the one place that decides so.
//
// Stops after `most_tokens`, in the middle of a document if need be, but never with a single token of one:
// nothing could be predicted there.
Documents read_documents(const fs::path& path, uint64_t most_tokens = UINT64_MAX);

}  // namespace moeflux
