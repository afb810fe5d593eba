#include "text/tokenizer_file.h"

#include "base/error.h"
#include "base/json.h"
#include "text/json_reader.h"
#include "text/sequence_depth.h"

namespace moeflux {
namespace {

void add_field(Json& fields, const std::string& name, std::string_view value, const std::string& where) {
  if (fields.contains(name)) fail(Errc::Corrupt, "{}: the key '{}' stands twice", where, name);
  fields[name] = parse_json(value, where + ": " + name);
}

AddedToken parse_added_token(const Json& json, const std::string& where) {
  const JsonObject object(json, where);
  AddedToken token;
  token.id = static_cast<Token>(object.count("id", 0, kMaxToken));
  token.content = object.string("content");
  token.single_word = object.flag_or("single_word", false);
  token.lstrip = object.flag_or("lstrip", false);
  token.rstrip = object.flag_or("rstrip", false);
  token.special = object.flag_or("special", false);
  token.normalized = object.flag_or("normalized", !token.special);
  if (token.content.empty()) fail(Errc::Corrupt, "{}: the added token {} is empty", where, token.id);
  return token;
}

void refuse_text(const JsonObject& model, const char* key) {
  if (!model.string_or(key, "").empty())
    fail(Errc::Unsupported, "{}: {} '{}' is not supported", model.where(), key, model.string(key));
}

void add_template_ids(const JsonObject& special_tokens, const std::string& name, std::vector<Token>& ids) {
  const JsonObject token = special_tokens.object(name.c_str());
  if (!token.at("ids").is_array()) token.wrong("ids", "an array of ids");
  for (const Json& id : token.at("ids")) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxToken) token.wrong("ids", "an array of ids");
    ids.push_back(id.get<Token>());
  }
}

void parse_template(const JsonObject& object, Surroundings& into) {
  if (!object.at("single").is_array()) object.wrong("single", "an array");
  bool after_text = false;
  for (const Json& item : object.at("single")) {
    const JsonObject part(item, object.where() + ": single");
    if (part.has("Sequence")) {
      after_text = true;
    } else {
      const std::string name = part.object("SpecialToken").string("id");
      add_template_ids(object.object("special_tokens"), name, after_text ? into.after : into.before);
    }
  }
}

void parse_post_processor(const Json& json, const std::string& where, int depth, Surroundings& into) {
  const JsonObject object(json, where);
  const std::string type = object.string("type");
  if (type == "ByteLevel") return;  // concerns offsets only
  if (type == "TemplateProcessing") return parse_template(object, into);
  if (type != "Sequence" || depth == kMaxSequenceDepth)
    fail(Errc::Unsupported, "{}: the post-processor '{}' is not supported", where, type);
  if (!object.at("processors").is_array()) object.wrong("processors", "an array");
  for (const Json& step : object.at("processors")) parse_post_processor(step, where, depth + 1, into);
}

}  // namespace

TokenizerFile::TokenizerFile(std::string_view text, const std::string& where)
    : fields_(std::make_unique<Json>(Json::object())), model_(std::make_unique<Json>(Json::object())) {
  JsonReader reader(text, where);
  bool has_model = false;
  reader.object([&](std::string_view key) {
    const std::string name(key);
    if (name != "model") return add_field(*fields_, name, reader.skip(), where);
    if (has_model) fail(Errc::Corrupt, "{}: the key 'model' stands twice", where);
    has_model = true;
    read_model(reader, where + ": model");
  });
  reader.end();
  if (!has_model) fail(Errc::Corrupt, "{}: the field 'model' is missing", where);
}

TokenizerFile::~TokenizerFile() = default;

void TokenizerFile::read_model(JsonReader& reader, const std::string& where) {
  reader.object([&](std::string_view key) {
    const std::string name(key);
    if (name != "vocab" && name != "merges") return add_field(*model_, name, reader.skip(), where);
    std::string_view& table = name == "vocab" ? vocabulary : merges;
    if (!table.empty()) fail(Errc::Corrupt, "{}: the key '{}' stands twice", where, name);
    table = reader.skip();
  });
  if (vocabulary.empty()) fail(Errc::Corrupt, "{}: the field 'vocab' is missing", where);
}

const Json* TokenizerFile::field(const char* name) const {
  const auto found = fields_->find(name);
  return found == fields_->end() || found->is_null() ? nullptr : &*found;
}

std::vector<AddedToken> TokenizerFile::added_tokens(const std::string& where) const {
  std::vector<AddedToken> result;
  const Json* list = field("added_tokens");
  if (!list) return result;
  if (!list->is_array()) fail(Errc::Corrupt, "{}: 'added_tokens' is not an array", where);
  for (const Json& item : *list) result.push_back(parse_added_token(item, where + ": added_tokens"));
  return result;
}

BpeOptions TokenizerFile::bpe_options(const std::string& where) const {
  const JsonObject model(*model_, where + ": model");
  const std::string type = model.string_or("type", "BPE");
  if (type != "BPE") fail(Errc::Unsupported, "{}: the model '{}' is not supported, only BPE is", where, type);
  if (merges.empty()) fail(Errc::Corrupt, "{}: the field 'merges' is missing", model.where());
  refuse_text(model, "continuing_subword_prefix");
  refuse_text(model, "end_of_word_suffix");
  if (model.number_or("dropout", 0) != 0)
    fail(Errc::Unsupported, "{}: dropout is not supported", model.where());
  BpeOptions options;
  options.ignore_merges = model.flag_or("ignore_merges", false);
  options.byte_fallback = model.flag_or("byte_fallback", false);
  options.fuse_unknown = model.flag_or("fuse_unk", false);
  options.unknown = model.string_or("unk_token", "");
  return options;
}

Surroundings parse_post_processor(const Json* json, const std::string& where) {
  Surroundings result;
  if (json) parse_post_processor(*json, where, 0, result);
  return result;
}

}  // namespace moeflux
