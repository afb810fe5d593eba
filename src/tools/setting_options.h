// The settings of text by name: one table, of which the options of `run` and `chat` and the /set of a
// conversation are made, so that they mean the same everywhere.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "gen/text_settings.h"

namespace moeflux {

struct Setting {
  enum class Kind { Value, List, Flag };
  Kind kind = Kind::Value;
  std::string name, type, help;
  std::string short_name = {};  // on the command line
  // Throws Error{InvalidArgument} that says what is wanted. Adds to a list; "" empties it.
  std::function<void(TextSettings&, const std::string&)> set;
  std::function<std::string(const TextSettings&)> show;
};

const std::vector<Setting>& text_settings();
const Setting* find_setting(const std::string& name);  // null where there is none

// Settings given on the command line, to be applied to a model's defaults.
struct SettingArguments {
  std::vector<std::pair<const Setting*, std::string>> given;

  bool has(const std::string& name) const;
  void apply(TextSettings& settings) const;
};

void add_setting_options(CLI::App& app, SettingArguments& into);

}  // namespace moeflux
