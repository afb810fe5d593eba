// The options with which `run` and `chat` say what the model reads and writes.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/answer_view.h"
#include "tools/setting_options.h"

namespace moeflux {

struct TextArguments {
  std::optional<std::string> system, grammar, json_schema;
  std::vector<std::string> template_args;
  SettingArguments settings;

  std::shared_ptr<const Grammar> load_grammar() const;  // null where none is asked for
  OrderedJson template_variables() const;
};

void add_text_options(CLI::App& app, TextArguments& into);
void add_reasoning_option(CLI::App& app, Reasoning& into);

// Text for a model: what is no UTF-8 becomes U+FFFD, and a line on stderr says so.
std::string readable_text(std::string text, const std::string& where);

}  // namespace moeflux
