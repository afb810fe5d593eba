#include "gen/text_model.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "model/config.h"
#include "package/package.h"

namespace moeflux {
namespace {

constexpr uint64_t kMostConfigBytes = uint64_t{64} << 20;

// tokenizer.json says what stands before a text, but for tokenizers of the Llama kind, for which the
// reference goes by add_bos_token of tokenizer_config.json.
std::vector<Token> leading_tokens(const fs::path& folder, const Tokenizer& tokenizer) {
  const fs::path path = folder / "tokenizer_config.json";
  if (!fs::exists(path)) return tokenizer.leading_ids();
  const Json json = parse_json(read_text(path, kMostConfigBytes), path.string());
  const JsonObject config(json, path.string());
  const Json* kind = config.find("tokenizer_class");
  const bool llama = kind && kind->is_string() && kind->get_ref<const std::string&>().starts_with("Llama");
  if (!llama || !config.has("add_bos_token")) return tokenizer.leading_ids();
  if (!config.flag_or("add_bos_token", false)) return {};
  const Json* bos = config.find("bos_token");
  const Json* text = bos && bos->is_object() && bos->contains("content") ? &bos->at("content") : bos;
  if (!text || !text->is_string()) config.wrong("bos_token", "a token's text, since add_bos_token is true");
  const auto token = tokenizer.find(text->get_ref<const std::string&>());
  if (!token) config.wrong("bos_token", "a token of tokenizer.json");
  return {*token};
}

}  // namespace

TextModel::TextModel(const fs::path& package)
    : folder_(package), n_vocab_(0), tokenizer_(Tokenizer::load(package)) {
  const Package opened(package);
  n_vocab_ = parse_model_config(opened.config(), opened.config_path()).n_vocab;
  defaults_ = read_generation_config(package);
  stop_tokens_ = moeflux::stop_tokens(defaults_, opened.config(), opened.config_path());
  leading_ = leading_tokens(package, tokenizer_);
}

const ChatTemplate& TextModel::chat_template() const {
  if (!chat_) chat_.emplace(ChatTemplate::from_folder(folder_));
  return *chat_;
}

std::vector<Token> TextModel::encode_text(std::string_view text, Markers markers) const {
  std::vector<Token> tokens = leading_;
  tokenizer_.encode(text, markers, tokens);
  return tokens;
}

const std::vector<std::string>& TextModel::token_bytes() const {
  if (token_bytes_.empty())
    for (size_t id = 0; id < n_vocab_; ++id)
      token_bytes_.push_back(tokenizer_.token_bytes(static_cast<Token>(id)));
  return token_bytes_;
}

std::shared_ptr<const MaskVocabulary> TextModel::mask_vocabulary() const {
  if (mask_vocabulary_) return mask_vocabulary_;
  const auto in_vocabulary = [this](Token id) { return id < n_vocab_; };
  std::vector<Token> special, ends;
  for (const AddedToken& token : tokenizer_.added_tokens())
    if (is_special(token)) special.push_back(token.id);
  std::ranges::copy_if(stop_tokens_, std::back_inserter(ends), in_vocabulary);
  mask_vocabulary_ = std::make_shared<MaskVocabulary>(token_bytes(), special, ends);
  return mask_vocabulary_;
}

// Some vocabularies do not mark the tags of calls as special; in a string, say, they are as much out of
// place.
bool TextModel::is_special(const AddedToken& token) const {
  return (token.special || is_call_tag(token.content)) && token.id < n_vocab_;
}

bool TextModel::is_special(std::string_view text) const {
  const std::optional<Token> id = tokenizer_.find(text);
  const AddedToken* token = id ? tokenizer_.added_token(*id) : nullptr;
  return token && is_special(*token);
}

std::vector<Token> TextModel::tokens_with(std::span<const std::string> strings) const {
  std::vector<Token> tokens;
  for (size_t id = 0; id < n_vocab_; ++id)
    if (std::ranges::any_of(strings, [&](const std::string& string) {
          return !string.empty() && token_bytes()[id].find(string) != std::string::npos;
        }))
      tokens.push_back(static_cast<Token>(id));
  return tokens;
}

Token TextModel::token_named(const std::string& name) const {
  Token id = 0;
  const char* end = name.data() + name.size();
  if (const auto [at, err] = std::from_chars(name.data(), end, id); err == std::errc() && at == end) {
    if (id >= n_vocab_) fail(Errc::InvalidArgument, "token {} is not in the vocabulary of {}", id, n_vocab_);
    return id;
  }
  const std::vector<Token> ids = tokenizer_.encode(name, Markers::Recognised);
  if (ids.size() != 1)
    fail(Errc::InvalidArgument, "'{}' is {} tokens of this model, not one", name, ids.size());
  return ids[0];
}

}  // namespace moeflux
