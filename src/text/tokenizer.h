// Text to token ids and back, as a checkpoint's own tokenizer.json says: added tokens, normaliser,
// pre-tokenizer, byte-pair encoding, decoder. Ids are those of the Hugging Face tokenizers library; what this
// code does not know is refused when the file is read. Beginning- and end-of-text tokens are the caller's
// business, and so are truncation and padding, which some files ask for.
//
// Immutable and safe to use from any number of threads.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/utf8.h"

namespace moeflux {

struct TextRange {
  size_t begin, end;  // bytes
};

enum class Markers {
  AsText,      // text that looks like an added token is text
  Recognised,  // it is that token, as in the reference
};

class Tokenizer {
 public:
  // A tokenizer.json, or a folder that has one (a package or a checkpoint).
  static Tokenizer load(const fs::path& path);
  // `where` names the file in messages. Throws Error{Corrupt | Unsupported}.
  Tokenizer(std::string_view json, const std::string& where);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  std::vector<Token> encode(std::string_view text, Markers markers = Markers::AsText) const;
  void encode(std::string_view text, Markers markers, std::vector<Token>& out) const;  // appends
  // Markers are recognised except where they touch one of these ranges, which users wrote; `ranges` are in
  // order. Other than encoding the parts one by one, this gives the same pieces as the whole text.
  std::vector<Token> encode_chat(std::string_view text, std::span<const TextRange> ranges) const;

  // Ids that stand for nothing give no text. Bytes that are no UTF-8 give U+FFFD.
  std::string decode(std::span<const Token> ids, bool skip_special = false) const;
  // What a token stands for inside a text; may be a part of a character. Empty for ids that stand for
  // nothing.
  std::string token_bytes(Token id) const;

  // The id of an added token or, where there is none, of a token as the file spells it.
  std::optional<Token> find(std::string_view spelling) const;
  const std::vector<AddedToken>& added_tokens() const;
  const AddedToken* added_token(Token id) const;  // null where it is none
  size_t n_tokens() const;                        // with added ones
  Token end_id() const;                           // above all ids
  // What the post-processor puts before and after a text.
  const std::vector<Token>& leading_ids() const;
  const std::vector<Token>& trailing_ids() const;

 private:
  friend class TextStream;
  struct Parts;
  struct Work;
  void append_bytes(Token id, bool skip_special, Decoder::Place& place, std::string& out) const;
  void encode_raw(std::string_view text, const AddedTokenFinder::Allowed& allowed, bool recognised,
                  std::vector<Token>& out) const;
  void encode_segment(std::string_view text, size_t offset, Work& work) const;

  std::unique_ptr<const Parts> parts_;
};

// Decodes ids as they come. What it has given so far is always whole characters, and all of it together with
// finish() is what decode() gives for the same ids.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = false);  // the tokenizer outlives it

  std::string push(Token id);  // the text that is complete by now; often empty
  std::string finish();        // the rest; after it, a new text may start

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  Decoder::Place place_;
  Utf8Assembler assembler_;
  std::string bytes_;
};

}  // namespace moeflux
