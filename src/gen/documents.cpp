#include "gen/documents.h"

#include <charconv>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

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

[[noreturn]] void refuse_text(const std::string& where, std::string_view found) {
  fail(Errc::Unsupported,
       "{}: {} is text, and text needs a tokenizer, which is not there yet: give token ids", where,
       quoted(found));
}

[[noreturn]] void refuse_item(const std::string& where, std::string_view found) {
  fail(Errc::Corrupt, "{}: {} is not a token id, a whole number from 0 to {} (text needs a tokenizer)", where,
       quoted(found), kMostId);
}

std::vector<Token> ids_of_array(const Json& array, const std::string& where) {
  std::vector<Token> ids;
  ids.reserve(array.size());
  for (const Json& item : array) {
    if (item.is_string()) refuse_text(where, item.get_ref<const std::string&>());
    if (!item.is_number_unsigned() || item.get<uint64_t>() > kMostId)
      refuse_item(where, item.dump(-1, ' ', true, Json::error_handler_t::replace));
    ids.push_back(item.get<Token>());
  }
  return ids;
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
  for (const auto& [name, field] : object.json().items())
    if (field.is_string()) refuse_text(object.where(), field.get_ref<const std::string&>());
  fail(Errc::Corrupt, "{}: none of the fields {} holds an array of token ids", object.where(), names);
}

std::vector<Token> ids_of_json(std::string_view line, const std::string& where) {
  const Json value = parse_json(line, where);
  if (value.is_string()) refuse_text(where, value.get_ref<const std::string&>());
  return value.is_array() ? ids_of_array(value, where) : ids_of_object({value, where});
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

}  // namespace

uint64_t Documents::n_tokens() const {
  uint64_t n = 0;
  for (const Document& d : list) n += d.tokens.size();
  return n;
}

Documents read_documents(const fs::path& path, uint64_t most_tokens) {
  const std::string text = read_text(path, kMostBytes);
  Documents documents{path.string(), {}};
  uint64_t number = 0, room = most_tokens;
  for (size_t at = 0; at < text.size() && room > 0;) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    const std::string where = fmt::format("{}: line {}", documents.source, ++number);
    const size_t first = line.find_first_not_of(kSpace);
    if (first == line.npos) continue;
    const bool json = std::string_view("[{\"").find(line[first]) != std::string_view::npos;
    Document document{number, json ? ids_of_json(line, where) : ids_of_list(line, where)};
    if (document.tokens.size() > room) {
      if (room < 2) break;
      document.tokens.resize(room);
    }
    room -= document.tokens.size();
    documents.list.push_back(std::move(document));
  }
  if (documents.list.empty()) fail(Errc::Corrupt, "{}: no token ids in it", documents.source);
  return documents;
}

}  // namespace moeflux
