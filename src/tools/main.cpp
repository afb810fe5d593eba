#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "base/text.h"
#include "tools/commands.h"

namespace moeflux {

CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::optional<uint64_t>& into,
                              const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&into, name](const std::string& text) {
            try {
              into = parse_bytes(text);
            } catch (const Error& e) {
              throw CLI::ValidationError(name, e.what());
            }
          },
          help)
      ->type_name("BYTES");
}

Precision precision_from_string(const std::string& text) {
  return text == "exact" ? Precision::Exact : Precision::Fast;
}

namespace {

bool has_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (command->get_name() == name) return true;
  return false;
}

}  // namespace
}  // namespace moeflux

int main(int argc, char** argv) {
  using namespace moeflux;
  std::signal(SIGPIPE,
              SIG_IGN);  // a reader that goes away is an error of the write, not the end of the process
  CLI::App app{
      "moeflux runs Mixture-of-Experts language models that are larger than memory.\n"
      "\n"
      "A published checkpoint is converted once into a package; every other command works on packages:\n"
      "  moeflux convert Qwen3-30B-A3B/ qwen3-30b.moe     make a package (4-bit experts)\n"
      "  moeflux plan qwen3-30b.moe --ram 6GiB            what goes where, bytes per token\n"
      "  moeflux run qwen3-30b.moe 'Once upon a time'     continue a text\n"
      "  moeflux chat qwen3-30b.moe                       talk with it\n"
      "  moeflux serve qwen3-30b.moe                      serve it to other programs\n"
      "\n"
      "`moeflux COMMAND --help` explains each command. Exit codes: 0 success, 1 failure, 2 wrong usage.",
      "moeflux"};
  app.set_version_flag("--version", "moeflux " MOEFLUX_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  add_convert_command(app);
  add_inspect_command(app);
  add_plan_command(app);
  add_run_command(app);
  add_chat_command(app);
  add_serve_command(app);
  add_perplexity_command(app);
  add_bench_command(app);
  add_cache_sim_command(app);
  add_verify_command(app);
  add_tokenize_command(app);
  add_template_command(app);
  add_synth_command(app);
  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1])) {
    std::fputs(fmt::format("moeflux: there is no command '{}'; moeflux --help lists them\n", argv[1]).c_str(),
               stderr);
    return 2;
  }
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0) fail(Errc::Io, "writing to standard output failed");
    return 0;
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return 2;
  } catch (const Unsuccessful&) {
    return 1;
  } catch (const Interrupted&) {
    return 130;
  } catch (const std::bad_alloc&) {
    std::fputs("moeflux: out of memory\n", stderr);
  } catch (const std::exception& e) {
    std::fputs(fmt::format("moeflux: {}\n", e.what()).c_str(), stderr);
  }
  return 1;
}
