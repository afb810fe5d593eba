#include "gen/documents.h"

#include <charconv>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "gen/text_model.h"

namespace moeflux {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // the file is read whole
constexpr uint64_t kMostId = std::numeric_limits<Token>::max();
constexpr std::string_view kSpace = " \t\r\f\v";
constexpr std::string_view kSeparators = " \t\r\f\v,";
constexpr const char* kIdFields[] = {"ids", "input_ids", "token_ids", "tokens"};

// As it can be shown to a terminal, whatever the file holds.
std::string quoted(std::string_view text) {
  const std::string shown(text.size() > 40 ? text.substr(0, 37) : text);
  return Json(shown).dump(-1, ' ', true, Json::error_handler_t::replace) + (text.size() > 40 ? "..." : "");
}

[[noreturn]] void refuse_item(const std::string& where, std::string_view found) {
  fail(Errc::Corrupt,
       "{}: {} is not a token id, a whole number from 0 to {} (text is read from files *.txt, from JSON "
       "strings "
       "and from the field `text` of JSON objects)",
       where, quoted(found), kMostId);
}

std::vector<Token> ids_of_array(const Json& array, const std::string& where) {
  std::vector<Token> ids;
  ids.reserve(array.size());
  for (const Json& item : array) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > kMostId)
      refuse_item(where, item.is_string() ? item.get<std::string>()
                                          : item.dump(-1, ' ', true, Json::error_handler_t::replace));
    ids.push_back(item.get<Token>());
  }
  return ids;
}

std::vector<Token> ids_of_list(std::string_view line, const std::string& where) {
  std::vector<Token> ids;
  for (size_t at = 0; (at = line.find_first_not_of(kSeparators, at)) != line.npos;) {
    const size_t end = std::min(line.find_first_of(kSeparators, at), line.size());
    const std::string_view item = line.substr(at, end - at);
    Token id = 0;
    const auto [next, err] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (err != std::errc() || next != item.data() + item.size()) refuse_item(where, item);
    ids.push_back(id);
    at = end;
  }
  return ids;
}

// One file, read from its beginning until there are enough tokens.
class Reader {
 public:
  Reader(const fs::path& path, const DocumentOptions& options)
      : options_(options), room_(options.most_tokens), documents_{path.string(), {}} {}

  Documents read(const fs::path& path) {
    const std::string content = read_text(path, kMostBytes);
    if (path.extension() == ".txt") {
      if (!content.empty()) add(1, ids_of_text(content, documents_.source));
    } else {
      read_lines(content);
    }
    if (documents_.list.empty()) fail(Errc::Corrupt, "{}: no token ids and no text in it", documents_.source);
    return std::move(documents_);
  }

 private:
  void read_lines(std::string_view content) {
    uint64_t number = 0;
    for (size_t at = 0; at < content.size() && room_ > 0;) {
      const size_t end = std::min(content.find('\n', at), content.size());
      const std::string_view line = content.substr(at, end - at);
      at = end + 1;
      const std::string where = fmt::format("{}: line {}", documents_.source, ++number);
      const size_t first = line.find_first_not_of(kSpace);
      if (first == line.npos) continue;
      const bool json = std::string_view("[{\"").find(line[first]) != std::string_view::npos;
      add(number, json ? ids_of_json(line, where) : ids_of_list(line, where));
    }
  }

  void add(uint64_t line, std::vector<Token> tokens) {
    if (tokens.size() > options_.most_per_document) tokens.resize(options_.most_per_document);
    if (tokens.size() > room_) {
      const bool nothing_to_predict = room_ < 2;
      tokens.resize(room_);
      room_ = 0;
      if (nothing_to_predict) return;
    }
    room_ -= std::min<uint64_t>(room_, tokens.size());
    documents_.list.push_back({line, std::move(tokens)});
  }

  std::vector<Token> ids_of_json(std::string_view line, const std::string& where) {
    const Json value = parse_json(line, where);
    if (value.is_string()) return ids_of_text(value.get_ref<const std::string&>(), where);
    return value.is_array() ? ids_of_array(value, where) : ids_of_object({value, where});
  }

  std::vector<Token> ids_of_object(const JsonObject& object) {
    const Json* found = nullptr;
    std::string names;
    for (const char* name : kIdFields) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
      const Json* field = object.find(name);
      if (!field || !field->is_array()) continue;  // `tokens` is a count in some files
      if (found) fail(Errc::Corrupt, "{}: more than one of the fields {} holds ids", object.where(), names);
      found = field;
    }
    if (found) return ids_of_array(*found, object.where());
    if (const Json* text = object.find("text"); text && text->is_string())
      return ids_of_text(text->get_ref<const std::string&>(), object.where());
    fail(Errc::Corrupt, "{}: none of the fields {} holds an array of token ids, nor `text` a string",
         object.where(), names);
  }

  std::vector<Token> ids_of_text(std::string_view text, const std::string& where) {
    if (options_.package.empty())
      fail(Errc::InvalidArgument, "{}: {} is text, and there is no tokenizer for it", where, quoted(text));
    if (const size_t good = well_formed_bytes(text); good != text.size())
      fail(Errc::Corrupt, "{}: not UTF-8 at byte {} of the text", where, good);
    if (!model_) model_.emplace(options_.package);
    ++documents_.n_texts;
    return model_->encode_text(text, options_.markers);
  }

  const DocumentOptions& options_;
  uint64_t room_;
  Documents documents_;
  std::optional<TextModel> model_;
};

}  // namespace

uint64_t Documents::n_tokens() const {
  uint64_t n = 0;
  for (const Document& d : list) n += d.tokens.size();
  return n;
}

Documents read_documents(const fs::path& path, const DocumentOptions& options) {
  return Reader(path, options).read(path);
}

}  // namespace moeflux
