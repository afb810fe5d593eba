// The options with which `run` and `chat` say what the model reads and writes.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/answer_parser.h"
#include "tools/text_settings.h"

namespace moeflux {

struct TextArguments {
  std::optional<std::string> system, grammar, json_schema;
  std::vector<std::string> template_args;
  SettingArguments settings;

  std::shared_ptr<const Grammar> load_grammar() const;  // null where none is asked for
  OrderedJson template_variables() const;
};

void add_text_options(CLI::App& app, TextArguments& into);

// Text for a model: what is no UTF-8 becomes U+FFFD, and a line on stderr says so.
std::string readable_text(std::string text, const std::string& where);

// A model's answer, put together from its events.
struct Answer {
  std::string text, reasoning;
  OrderedJson tool_calls = OrderedJson::array();

  void add(const AnswerEvent& event);
  OrderedJson message() const;  // as the chat completions API has it
};

}  // namespace moeflux
