#include "tools/text_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/json.h"
#include "text/json_schema.h"

namespace moeflux {
namespace {

std::pair<std::string, OrderedJson> template_variable(const std::string& text) {
  const size_t at = text.find('=');
  if (at == 0 || at == text.npos) fail(Errc::InvalidArgument, "'{}' is not of the form NAME=VALUE", text);
  const std::string value = text.substr(at + 1);
  OrderedJson parsed = OrderedJson::parse(value, nullptr, false);  // true, 3, "x"; a bare word is a string
  return {text.substr(0, at), parsed.is_discarded() ? OrderedJson(value) : std::move(parsed)};
}

// Refused by name rather than as unknown: people try them.
void refuse_media(CLI::App& app) {
  for (const char* kind : {"image", "audio", "video"})
    app.add_option_function<std::string>(
           fmt::format("--{}", kind),
           [kind](const std::string&) {
             throw CLI::ValidationError(
                 fmt::format("--{}", kind),
                 "only text is supported: the vision and audio parts of models are left "
                 "out when a package is made");
           })
        ->group("");
}

}  // namespace

std::shared_ptr<const Grammar> TextArguments::load_grammar() const {
  if (!grammar && !json_schema) return nullptr;
  const std::string& path = grammar ? *grammar : *json_schema;
  const std::string text = read_text(path, kMaxGrammarBytes);
  try {
    return std::make_shared<Grammar>(grammar ? Grammar::parse(text)
                                             : compile_json_schema(std::string_view(text)));
  } catch (const Error& e) {
    fail(e.code, "{}: {}", path, e.what());
  }
}

OrderedJson TextArguments::template_variables() const {
  OrderedJson variables = OrderedJson::object();
  for (const std::string& text : template_args) {
    auto [name, value] = template_variable(text);
    variables[name] = std::move(value);
  }
  return variables;
}

void add_text_options(CLI::App& app, TextArguments& into) {
  app.add_option("--system", into.system, "What the model is told before the conversation")
      ->type_name("TEXT");
  app.add_option_function<std::vector<std::string>>(
         "--template-arg",
         [&into](const std::vector<std::string>& values) {
           for (const std::string& value : values) {
             try {
               template_variable(value);
             } catch (const Error& e) {
               throw CLI::ValidationError("--template-arg", e.what());
             }
           }
           into.template_args = values;
         },
         "A variable of the chat template, such as enable_thinking=false; repeatable")
      ->allow_extra_args(false)
      ->type_name("NAME=VALUE");
  CLI::Option* grammar =
      app.add_option("--grammar", into.grammar, "Only text that this grammar (GBNF) allows")
          ->type_name("FILE");
  app.add_option("--json-schema", into.json_schema, "Only JSON that this schema allows")
      ->type_name("FILE")
      ->excludes(grammar);
  add_setting_options(app, into.settings);
  refuse_media(app);
}

void add_reasoning_option(CLI::App& app, Reasoning& into) {
  app.add_option_function<std::string>(
         "--reasoning",
         [&into](const std::string& name) {
           const auto& names = reasoning_names();
           into = static_cast<Reasoning>(std::ranges::find(names, name) - names.begin());
         },
         "The model's thoughts: show, fold (to one line) or hide (default: show)")
      ->check(CLI::IsMember(reasoning_names()))
      ->type_name("HOW");
}

std::string readable_text(std::string text, const std::string& where) {
  const size_t good = well_formed_bytes(text);
  if (good == text.size()) return text;
  fmt::print(stderr, "{} is not UTF-8 at byte {}; such bytes are read as U+FFFD\n", where, good);
  return replace_ill_formed(text);
}

}  // namespace moeflux
