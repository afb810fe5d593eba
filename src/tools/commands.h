// The sub-commands of the program. Each function adds one to the parser; the chosen one's callback does the
// work and throws Error on failure. stdout carries the result, stderr everything else.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/error.h"
#include "gen/engine.h"
#include "gen/routing_log_tap.h"

namespace moeflux {

void add_synth_command(CLI::App& app);
void add_convert_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_verify_command(CLI::App& app);
void add_run_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_serve_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_perplexity_command(CLI::App& app);
void add_cache_sim_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_template_command(CLI::App& app);

// Thrown by a command whose work was done but whose answer is "no": the program exits with 1 and says nothing
// more.
struct Unsuccessful {};
// Thrown by a command that the user has stopped with Ctrl-C: the program exits with 130, as if killed by it.
struct Interrupted {};

// An option that takes a size such as 6GiB.
CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::optional<uint64_t>& into,
                              const std::string& help);

// "auto" is the fastest that can run here.
std::string backend_from_string(const std::string& text);
Precision precision_from_string(const std::string& text);

// How a command runs a model, as the user gives it.
struct EngineArguments {
  std::string backend = "auto", precision = "fast", kv, isa = "auto";
  uint64_t ctx = 0, chunk = kDefaultChunk;
  size_t threads = 0;
  bool no_check_reads = false, no_register_memory = false;
  std::optional<uint64_t> ram, max_memory, vram;
  std::optional<double> vram_share;
  std::vector<std::string> stripes;
  std::string read_queue = "auto", direct = "auto", policy = policy_names().front(), prefetch = "auto",
              guess_by = "both";
  std::optional<uint64_t> read_piece;
  std::optional<size_t> read_depth;
  double read_timeout = 30;
  std::optional<std::string> trace;

  EngineOptions options() const;
};

void add_engine_options(CLI::App& app, EngineArguments& into);

// --routing-log FILE: records which experts are chosen, for cache-sim.
void add_routing_log_option(CLI::App& app, std::optional<std::string>& into);

class RoutingLogOption {
 public:
  RoutingLogOption(const std::optional<std::string>& path, const Engine& engine);
  Tap tap();     // empty without a path
  void close();  // throws Error{Io | NoSpace}

 private:
  std::optional<RoutingLogWriter> log_;
};

}  // namespace moeflux
