// What a package knows about text: its tokenizer, chat template, defaults for generation and the tokens that
// end a text. Never changes, but template and tables are made when they are first asked for: for one thread
// at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gen/generation_config.h"
#include "text/chat_template.h"
#include "text/token_mask.h"
#include "text/tokenizer.h"

namespace moeflux {

class TextModel {
 public:
  explicit TextModel(const fs::path& package);

  const fs::path& folder() const { return folder_; }
  size_t n_vocab() const {
    return n_vocab_;
  }  // logits that the model gives; often more than there are tokens
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const GenerationConfig& defaults() const { return defaults_; }
  const std::vector<Token>& stop_tokens() const { return stop_tokens_; }
  const ChatTemplate& chat_template() const;  // throws Error{NotFound} where the package has none

  // A text to be continued, with what stands before every text (in some models, a token for its beginning).
  std::vector<Token> encode_text(std::string_view text, Markers markers) const;

  // [n_vocab]: what each token stands for inside a text.
  const std::vector<std::string>& token_bytes() const;
  std::shared_ptr<const MaskVocabulary> mask_vocabulary() const;
  // Whether this text is a token that grammars name by its special_token_bytes() and text cannot spell.
  bool is_special(std::string_view text) const;
  // All tokens whose text holds one of these strings, by id.
  std::vector<Token> tokens_with(std::span<const std::string> strings) const;
  // A token by its id or its text; throws Error{InvalidArgument} where the text is not one token.
  Token token_named(const std::string& name) const;

 private:
  bool is_special(const AddedToken& token) const;

  fs::path folder_;
  size_t n_vocab_;
  Tokenizer tokenizer_;
  GenerationConfig defaults_;
  std::vector<Token> stop_tokens_;
  std::vector<Token> leading_;  // before a text
  mutable std::optional<ChatTemplate> chat_;
  mutable std::vector<std::string> token_bytes_;
  mutable std::shared_ptr<const MaskVocabulary> mask_vocabulary_;
};

}  // namespace moeflux
