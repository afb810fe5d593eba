// A model's chat template: turns a conversation into the text that the model was trained on. The text is
// tokenised with special tokens recognised and without adding any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "io/file.h"
#include "text/answer_parser.h"
#include "text/jinja_template.h"

namespace moeflux {

// One conversation, in the form of the chat completions API.
struct Conversation {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools;                          // null where there are none
  OrderedJson extra = OrderedJson::object();  // further variables: enable_thinking, reasoning_effort, ...
  bool add_generation_prompt = true;
};

class ChatTemplate {
 public:
  // The template in a file of its own; there are then no special tokens but those that the variables name.
  static ChatTemplate from_file(const fs::path& path);
  // chat_template.jinja in a checkpoint or package, else the chat_template of its tokenizer_config.json,
  // which also names the special tokens. Throws Error{NotFound} where there is none.
  static ChatTemplate from_folder(const fs::path& folder);
  ChatTemplate(std::string_view source, std::string name);

  // Throws jinja::TemplateError, also where the template itself refuses the conversation.
  std::string render(const Conversation& conversation, const jinja::LocalTime& now) const;
  // The same with every variable given: nothing is added but the special tokens that are not among them.
  std::string render_variables(const OrderedJson& variables, const jinja::LocalTime& now) const;

  // How this template's model writes thoughts and tool calls.
  AnswerFormat answer_format() const { return answer_format_; }
  // Whether the template's source has this word in it: a name that it may look at, such as "tools".
  bool mentions(std::string_view word) const { return source_.find(word) != source_.npos; }
  const std::string& source() const { return source_; }  // of all variants
  // The text of a special token such as "eos_token"; nothing where the folder names none.
  std::optional<std::string> special_token(std::string_view name) const;

 private:
  ChatTemplate() = default;
  void read_tokenizer_config(const fs::path& path, bool with_template);
  void add(std::string_view source, std::string name, std::string variant);

  struct Variant {
    std::string name;  // "default", "tool_use", ...
    jinja::Template parsed;
  };
  const jinja::Template& choose(const OrderedJson& variables) const;

  std::vector<Variant> variants_;
  std::string source_;
  AnswerFormat answer_format_ = AnswerFormat::Plain;
  OrderedJson special_tokens_ = OrderedJson::object();
};

}  // namespace moeflux
