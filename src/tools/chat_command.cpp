#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "tools/chat_program.h"
#include "tools/commands.h"
#include "tools/store_report.h"
#include "tools/text_options.h"

namespace moeflux {
namespace {

struct ChatArguments {
  std::string package;
  std::optional<std::string> history;
  bool no_history = false;
  Reasoning reasoning = Reasoning::Show;
  TextArguments text;
  EngineArguments engine;
};

// Where a user's programs keep such things, by convention.
std::optional<fs::path> default_history() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state)
    return fs::path(state) / "moeflux/history";
  if (const char* home = std::getenv("HOME"); home && *home)
    return fs::path(home) / ".local/state/moeflux/history";
  return {};
}

std::string model_name(const fs::path& package) {
  const fs::path path = fs::absolute(package).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

void chat(const ChatArguments& o) {
  const auto grammar = o.text.load_grammar();
  const TextModel model(o.package);
  check_grammar(model, grammar.get());
  Engine engine(o.package, o.engine.options());
  if (!engine.store().holds_all()) fmt::print(stderr, "experts are read with {}\n", describe_reads(engine));
  const bool interactive = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  ChatProgram program(engine, model,
                      {.name = model_name(o.package),
                       .system = o.text.system,
                       .template_variables = o.text.template_variables(),
                       .settings = o.text.settings,
                       .grammar = grammar,
                       .reasoning = o.reasoning,
                       .interactive = interactive});
  LineReaderOptions reading{.interactive = interactive, .history = default_history()};
  if (o.history) reading.history = *o.history;
  if (o.no_history) reading.history.reset();
  const size_t n_failed = program.run(*make_line_reader(reading));
  if (engine.options().trace) engine.options().trace->close();
  if (n_failed > 0 && !interactive) throw Unsuccessful{};
}

}  // namespace

void add_chat_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("chat", "Talk with a model");
  cmd->footer(
      "A conversation in the terminal: answers stream, /help lists the commands, Ctrl-C stops an answer, "
      "Ctrl-D "
      "leaves.\n"
      "Lines that are typed are kept for the arrow keys, also for the next time (--history, --no-history).\n"
      "\n"
      "Through a pipe, each line is a message (or a command); answers go to stdout, everything else to "
      "stderr:\n"
      "  printf '%s\\n' 'Tell me a story.' 'And then?' | moeflux chat story.moe");
  auto o = std::make_shared<ChatArguments>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package")->required();
  add_text_options(*cmd, o->text);
  add_reasoning_option(*cmd, o->reasoning);
  CLI::Option* history =
      cmd->add_option("--history", o->history,
                      "Keep typed lines here (default: moeflux/history in $XDG_STATE_HOME or ~/.local/state)")
          ->type_name("FILE");
  cmd->add_flag("--no-history", o->no_history, "Keep them only as long as the program runs")
      ->excludes(history);
  add_engine_options(*cmd, o->engine);
  cmd->callback([o] { chat(*o); });
}

}  // namespace moeflux
