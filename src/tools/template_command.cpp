#include "text/chat_template.h"
#include "tools/commands.h"
#include "tools/standard_streams.h"

namespace moeflux {
namespace {

constexpr uint64_t kMaxInputBytes = uint64_t{64} << 20;

struct TemplateArguments {
  std::string template_path, input;
};

jinja::LocalTime time_of(const OrderedJson& variables, const std::string& where) {
  const auto now = variables.find("now");
  if (now == variables.end()) return jinja::local_time_now();
  if (!now->is_string()) fail(Errc::Corrupt, "{}: 'now' is a string such as 2026-01-02T03:04:05", where);
  return jinja::parse_local_time(now->get_ref<const std::string&>());
}

void render(const TemplateArguments& o) {
  const bool is_folder = fs::is_directory(o.template_path);
  const ChatTemplate chat =
      is_folder ? ChatTemplate::from_folder(o.template_path) : ChatTemplate::from_file(o.template_path);
  OrderedJson variables = parse_ordered_json(read_text(o.input, kMaxInputBytes), o.input);
  if (!variables.is_object()) fail(Errc::Corrupt, "{}: want a JSON object of variables", o.input);
  const jinja::LocalTime now = time_of(variables, o.input);
  variables.erase("now");
  write_out(chat.render_variables(variables, now));
}

}  // namespace

void add_template_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("template", "Render a chat template");
  cmd->footer(
      "Each member of the object in --input is a variable of the template: messages, tools,\n"
      "add_generation_prompt, bos_token and so on. 'now' (2026-01-02T03:04:05) is no variable; it is the "
      "time that\n"
      "the template sees. A folder's own special tokens are variables too. The text goes to stdout as it "
      "is.");
  auto o = std::make_shared<TemplateArguments>();
  cmd->add_option("TEMPLATE", o->template_path,
                  "A file such as chat_template.jinja, or the folder of a model")
      ->required();
  cmd->add_option("--input", o->input, "JSON file with the variables")->required()->type_name("FILE");
  cmd->callback([o] { render(*o); });
}

}  // namespace moeflux
