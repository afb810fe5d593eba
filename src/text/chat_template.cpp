#include "text/chat_template.h"

#include "text/jinja_lexer.h"

namespace moeflux {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{64} << 20;
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                          "sep_token", "cls_token", "mask_token"};

// A token is named by its text, or by an object that also says how it is matched.
const OrderedJson* token_text(const OrderedJson& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) return nullptr;
  if (found->is_string()) return &*found;
  if (!found->is_object()) return nullptr;
  const auto content = found->find("content");
  return content != found->end() && content->is_string() ? &*content : nullptr;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name) {
  add(source, std::move(name), "default");
}

void ChatTemplate::add(std::string_view source, std::string name, std::string variant) {
  variants_.push_back({std::move(variant), jinja::Template(source, std::move(name))});
  if (answer_format_ == AnswerFormat::Plain) answer_format_ = answer_format_of(source);
  source_ += source;
}

ChatTemplate ChatTemplate::from_file(const fs::path& path) {
  return {read_text(path, jinja::kMaxSourceBytes), path.string()};
}

ChatTemplate ChatTemplate::from_folder(const fs::path& folder) {
  ChatTemplate result;
  const fs::path file = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  const bool has_file = fs::exists(file);
  if (has_file) result.add(read_text(file, jinja::kMaxSourceBytes), file.string(), "default");
  if (fs::exists(config)) result.read_tokenizer_config(config, !has_file);
  if (result.variants_.empty())
    fail(Errc::NotFound,
         "{}: there is neither chat_template.jinja nor a chat_template in tokenizer_config.json",
         folder.string());
  return result;
}

void ChatTemplate::read_tokenizer_config(const fs::path& path, bool with_template) {
  const OrderedJson config = parse_ordered_json(read_text(path, kMaxConfigBytes), path.string());
  if (!config.is_object()) fail(Errc::Corrupt, "{}: not a JSON object", path.string());
  for (const char* name : kSpecialTokens)
    if (const OrderedJson* text = token_text(config, name)) special_tokens_[name] = *text;
  const auto found = config.find("chat_template");
  if (!with_template || found == config.end() || found->is_null()) return;
  const std::string where = path.string() + ": chat_template";
  if (found->is_string()) return add(found->get_ref<const std::string&>(), where, "default");
  if (!found->is_array()) fail(Errc::Corrupt, "{}: want a string or a list", where);
  for (const OrderedJson& item : *found) {
    const auto name = item.is_object() ? item.find("name") : item.end();
    const auto source = item.is_object() ? item.find("template") : item.end();
    if (name == item.end() || source == item.end() || !name->is_string() || !source->is_string())
      fail(Errc::Corrupt, "{}: want objects with 'name' and 'template'", where);
    add(source->get_ref<const std::string&>(), where + " '" + name->get<std::string>() + "'",
        name->get<std::string>());
  }
}

const jinja::Template& ChatTemplate::choose(const OrderedJson& variables) const {
  const auto tools = variables.find("tools");
  const bool has_tools = tools != variables.end() && !tools->is_null();
  for (const Variant& variant : variants_)
    if (has_tools && variant.name == "tool_use") return variant.parsed;
  for (const Variant& variant : variants_)
    if (variant.name == "default") return variant.parsed;
  return variants_.front().parsed;
}

std::string ChatTemplate::render(const Conversation& conversation, const jinja::LocalTime& now) const {
  OrderedJson variables = OrderedJson::object();
  variables["messages"] = conversation.messages;
  variables["tools"] = conversation.tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = conversation.add_generation_prompt;
  for (const auto& [name, value] : conversation.extra.items()) variables[name] = value;
  return render_variables(variables, now);
}

std::string ChatTemplate::render_variables(const OrderedJson& variables, const jinja::LocalTime& now) const {
  OrderedJson all = variables;
  for (const auto& [name, text] : special_tokens_.items())
    if (!all.contains(name)) all[name] = text;
  return choose(all).render(all, now);
}

std::optional<std::string> ChatTemplate::special_token(std::string_view name) const {
  const auto found = special_tokens_.find(std::string(name));
  if (found == special_tokens_.end()) return {};
  return found->get<std::string>();
}

}  // namespace moeflux
