#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "base/memory.h"
#include "server/model_server.h"
#include "tools/commands.h"
#include "tools/store_report.h"

namespace moeflux {
namespace {

constexpr const char* kKeyVariable = "MOEFLUX_API_KEY";
constexpr uint64_t kMostKeyFile = 1 << 20;
constexpr uint64_t kDefaultPrefixRam = uint64_t{256} << 20, kDefaultPrefixDisk = uint64_t{4} << 30;

struct ServeArguments {
  std::string package, host = "127.0.0.1";
  uint16_t port = 8080;
  std::optional<std::string> api_key_file, name;
  std::vector<std::string> aliases, cors, allow_hosts;
  bool any_model = false, no_log = false;
  size_t parallel = 4, max_queue = 64, busy_chunk = 256, max_connections = 1024, http_threads = 2;
  std::optional<uint64_t> max_body, prefix_ram, prefix_disk;
  std::optional<std::string> prefix_cache;
  double timeout = 0, idle_timeout = 75, request_timeout = 120, ping = 15, grace = 30;
  EngineArguments engine;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
}

std::vector<std::string> api_keys(const ServeArguments& o) {
  if (o.api_key_file) return read_api_keys(read_text(*o.api_key_file, kMostKeyFile), *o.api_key_file);
  if (const char* keys = std::getenv(kKeyVariable); keys && *keys) return read_api_keys(keys, kKeyVariable);
  return {};
}

// Signals that ask the program to end, taken one at a time instead of interrupting it. Threads that are made
// while it lives do not see them.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~StopSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool wait(std::chrono::milliseconds most) const {  // true: one has come
    const timespec time{.tv_sec = most.count() / 1000, .tv_nsec = most.count() % 1000 * 1'000'000};
    return sigtimedwait(&set_, nullptr, &time) > 0;
  }

 private:
  sigset_t set_, before_;
};

// While a model is being loaded there is nothing to finish: a signal ends the program at once.
class EndWhileLoading {
 public:
  explicit EndWhileLoading(const StopSignals& signals)
      : thread_([&signals](const std::stop_token& stop) {
          while (!stop.stop_requested())
            if (signals.wait(std::chrono::milliseconds(50))) std::_Exit(kInterrupted);
        }) {}

 private:
  static constexpr int kInterrupted = 130;
  std::jthread thread_;
};

PrefixCacheOptions prefix_options(const ServeArguments& o) {
  PrefixCacheOptions prefixes;
  prefixes.ram_bytes = o.prefix_ram.value_or(std::min(kDefaultPrefixRam, available_memory() / 8));
  if (o.prefix_cache) {
    prefixes.folder = *o.prefix_cache;
    prefixes.disk_bytes = o.prefix_disk.value_or(kDefaultPrefixDisk);
  }
  return prefixes;
}

// Room for many texts, and for what is kept of earlier ones.
EngineOptions engine_options(const ServeArguments& o, const PrefixCacheOptions& prefixes) {
  EngineOptions options = o.engine.options();
  options.sequences = o.parallel;
  options.logit_rows = std::max<uint64_t>(options.logit_rows, o.parallel);
  options.kept_bytes = prefixes.ram_bytes;
  return options;
}

ModelServerOptions server_options(const ServeArguments& o) {
  ModelServerOptions options;
  options.http.host = o.host;
  options.http.port = o.port;
  options.http.threads = o.http_threads;
  HttpLimits& limits = options.http.limits;
  limits.connections = o.max_connections;
  if (o.max_body) limits.body_bytes = *o.max_body;
  limits.all_body_bytes = std::max(limits.all_body_bytes, 2 * limits.body_bytes);
  limits.idle = milliseconds(o.idle_timeout);
  limits.body = milliseconds(o.request_timeout);
  limits.head = std::min(limits.head, limits.body);
  options.access = {.keys = api_keys(o), .cors = o.cors, .host_names = {}};
  for (const std::string& name : o.allow_hosts) options.access.host_names.push_back(lower_case(name));
  options.api = {
      .timeout = milliseconds(o.timeout), .ping = milliseconds(o.ping), .version = MOEFLUX_VERSION};
  options.log = !o.no_log;
  return options;
}

// Lets answers end by themselves for a while; a second signal does not wait for them.
void shut_down(ModelServer& server, const StopSignals& signals, double grace_s) {
  using Clock = std::chrono::steady_clock;
  fmt::print(stderr, "ending: answers under way have {} s\n", grace_s);
  server.begin_shutdown();
  const auto limit = Clock::now() + milliseconds(grace_s);
  while (!server.wait_idle(std::chrono::milliseconds(0)) && Clock::now() < limit)
    if (signals.wait(std::chrono::milliseconds(50))) break;
  server.end_answers();
  server.wait_idle(std::chrono::milliseconds(2000));  // until clients have been told
}

void serve(const ServeArguments& o) {
  const StopSignals signals;
  const ModelServerOptions options = server_options(o);
  // They come into being once the server listens, and must outlive it.
  std::unique_ptr<TextModel> text;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Scheduler> scheduler;
  ModelServer server(options);
  if (!server.is_loopback() && options.access.keys.empty())
    fmt::print(
        stderr,
        "warning: everybody who reaches {} can use this server: there is no API key (--api-key-file)\n",
        server.url());
  std::optional<EndWhileLoading> loading(signals);
  text = std::make_unique<TextModel>(o.package);
  const PrefixCacheOptions prefixes = prefix_options(o);
  engine = std::make_unique<Engine>(o.package, engine_options(o, prefixes));
  if (!engine->store().holds_all()) fmt::print(stderr, "experts are read with {}\n", describe_reads(*engine));
  ModelInfo model = describe_model(*engine, MOEFLUX_VERSION);
  if (o.name) model.id = *o.name;
  model.aliases = o.aliases;
  model.any_name = o.any_model;
  scheduler = std::make_unique<Scheduler>(*engine, *text,
                                          SchedulerOptions{.parallel = o.parallel,
                                                           .max_queue = o.max_queue,
                                                           .busy_chunk = o.busy_chunk,
                                                           .prefixes = prefixes});
  try {
    text->chat_template();  // made now: later, several threads look at it
  } catch (const Error& e) {
    if (e.code != Errc::NotFound) throw;
    fmt::print(stderr, "no chat template: only /v1/completions will answer\n");
  }
  loading.reset();
  server.serve(*engine, *text, *scheduler, model);
  fmt::print(stderr, "{} is ready: a context of {} tokens, {} texts at once\n", model.id, model.context,
             o.parallel);
  fmt::print("{}\n", server.url());
  std::fflush(stdout);
  while (!signals.wait(std::chrono::seconds(3600))) {
  }
  shut_down(server, signals, o.grace);
  if (engine->options().trace) engine->options().trace->close();
}

void add_limits(CLI::App& cmd, ServeArguments& o) {
  const std::string group = "Limits";
  cmd.add_option("--parallel", o.parallel, "Texts that are generated at once")
      ->check(CLI::Range(size_t{1}, size_t{1024}))
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--max-queue", o.max_queue, "Texts that may wait; beyond, requests are refused with 429")
      ->check(CLI::Range(size_t{1}, size_t{1000000}))
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--busy-chunk", o.busy_chunk, "Prompt tokens per step while texts are generated")
      ->check(CLI::Range(uint64_t{1}, kMostChunk))
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--timeout", o.timeout, "Seconds that a whole answer may take; 0: as long as it likes")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group(group);
  add_bytes_option(cmd, "--max-body", o.max_body, "Bytes of a request (default: 32MiB)")->group(group);
  cmd.add_option("--max-connections", o.max_connections, "Connections at once")
      ->check(CLI::Range(size_t{1}, size_t{100000}))
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--request-timeout", o.request_timeout, "Seconds in which a request must have come in")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--idle-timeout", o.idle_timeout, "Seconds that a connection may stay without a request")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--ping", o.ping, "Seconds of silence after which a stream gets a comment; 0: never")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--grace", o.grace, "Seconds that answers have to end when the program is asked to stop")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--http-threads", o.http_threads, "Threads that read requests (not connections)")
      ->check(CLI::Range(size_t{1}, size_t{64}))
      ->capture_default_str()
      ->group(group);
}

void add_prefix_cache(CLI::App& cmd, ServeArguments& o) {
  const std::string group = "What is kept of prompts, for later ones that begin the same";
  add_bytes_option(cmd, "--prefix-ram", o.prefix_ram,
                   "In memory (default: 256MiB, or an eighth of what there is)")
      ->group(group);
  CLI::Option* folder =
      cmd.add_option("--prefix-cache", o.prefix_cache, "Keep it in this folder too, also for the next start")
          ->type_name("FOLDER")
          ->group(group);
  add_bytes_option(cmd, "--prefix-disk", o.prefix_disk, "Bytes of that folder (default: 4GiB)")
      ->needs(folder)
      ->group(group);
}

void add_access(CLI::App& cmd, ServeArguments& o) {
  const std::string group = "Who may ask";
  cmd.add_option("--host", o.host, "Address to listen on; 0.0.0.0 for all of IPv4")
      ->capture_default_str()
      ->group(group);
  cmd.add_option("--port", o.port, "Port; 0: any that is free")->capture_default_str()->group(group);
  cmd.add_option("--api-key-file", o.api_key_file,
                 fmt::format("File of API keys, one per line (or the environment variable {})", kKeyVariable))
      ->type_name("FILE")
      ->group(group);
  cmd.add_option("--cors", o.cors,
                 "An origin whose pages may ask, such as https://example.org, or *; repeatable")
      ->allow_extra_args(false)
      ->type_name("ORIGIN")
      ->group(group);
  cmd.add_option("--allow-host", o.allow_hosts,
                 "A further name by which clients may call a server on a loopback address; repeatable")
      ->allow_extra_args(false)
      ->type_name("NAME")
      ->group(group);
}

}  // namespace

void add_serve_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("serve", "Serve a model over HTTP, with the OpenAI and Anthropic APIs");
  cmd->footer(
      "Prints its address on stdout once it is ready, and a line of JSON for every request on stderr.\n"
      "Ctrl-C or SIGTERM ends it: answers under way are finished (--grace); a second signal does not wait.\n"
      "docs/SERVER.md describes every endpoint and field.\n"
      "\n"
      "  moeflux serve qwen3-30b.moe --ram 8GiB\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Who are you?\"}]}'");
  auto o = std::make_shared<ServeArguments>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package")->required();
  cmd->add_option("--name", o->name, "The model's name in the APIs (default: the folder's)");
  cmd->add_option("--alias", o->aliases, "A further name that requests may give; repeatable")
      ->allow_extra_args(false);
  cmd->add_flag("--any-model", o->any_model, "Answer whatever model a request names");
  add_access(*cmd, *o);
  add_limits(*cmd, *o);
  add_prefix_cache(*cmd, *o);
  cmd->add_flag("--no-log", o->no_log, "No line per request");
  add_engine_options(*cmd, o->engine);
  cmd->callback([o] { serve(*o); });
}

}  // namespace moeflux
