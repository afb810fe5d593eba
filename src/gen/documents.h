// Files of documents to evaluate, as text or as token ids. Everything is checked here except whether an id is
// in a model's vocabulary, which only a model knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file.h"
#include "model/backend.h"
#include "text/tokenizer.h"

namespace moeflux {

struct Document {
  uint64_t line;  // in the file, counted from 1
  std::vector<Token> tokens;
};

struct Documents {
  std::string source;  // the file, for messages
  std::vector<Document> list;
  uint64_t n_texts = 0;  // of the documents, those that were text
  uint64_t n_tokens() const;
};

struct DocumentOptions {
  uint64_t most_tokens = UINT64_MAX;        // of all documents; the last one may be cut
  uint64_t most_per_document = UINT64_MAX;  // what a document has beyond is left out
  fs::path package = {};                  // its tokenizer is read once there is text; empty: text is refused
  Markers markers = Markers::Recognised;  // in text
};

// A file whose name ends in .txt is one document of text. Any other has one document per line:
//
//   a JSON array of ids; a JSON object whose field `ids`, `input_ids`, `token_ids` or `tokens` is such an
//   array; ids separated by commas or white space;
//   a JSON string, or a JSON object with a string in the field `text` and no array of ids: text.
//
// Blank lines are passed over. A text's ids are those of TextModel::encode_text. Text that is not UTF-8 is
// refused.
//
// No document is left with a single token because of `most_tokens`: nothing could be predicted there.
Documents read_documents(const fs::path& path, const DocumentOptions& options = {});

}  // namespace moeflux
