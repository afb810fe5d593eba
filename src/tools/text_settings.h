// How text is generated, as people set it: one table of named settings, of which the options of `run` and
// `chat` and the /set of a conversation are made, so that they mean the same everywhere.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gen/text_session.h"

namespace moeflux {

struct TextSettings {
  SamplerOptions sampler = {};  // breakers and biases are below, as text
  std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};
  struct Bias {
    std::string token;  // id or text
    double bias;
  };
  std::vector<Bias> logit_bias = {};
  std::vector<std::string> stop = {};
  std::optional<size_t> max_tokens = {};
  size_t min_tokens = 0;
  bool ignore_eos = false;
  std::optional<uint64_t> seed = {};  // none: a new one each time
};

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

TextSettings default_settings(const TextModel& model);
uint64_t random_seed();
// All that needs no tokenizer: no stop tokens, breakers and biases. `seed`: of this one generation.
GenerateOptions generate_options(const TextSettings& settings, uint64_t seed);
// The same with texts turned into tokens of the model. Throws Error{InvalidArgument}.
TextRequest text_request(const TextSettings& settings, const TextModel& model, uint64_t seed);

}  // namespace moeflux
