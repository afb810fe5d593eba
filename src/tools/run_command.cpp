#include <charconv>
#include <chrono>
#include <cstdio>

#include "base/json.h"
#include "base/text.h"
#include "tools/commands.h"
#include "tools/store_report.h"

namespace moeflux {
namespace {

struct Options {
  std::string package, tokens;
  uint64_t n = 16;
  double temp = 0;
  bool json = false, stats = false;
  std::optional<std::string> routing_log;
  EngineArguments engine;
};

std::vector<Token> parse_tokens(const std::string& text) {
  std::vector<Token> tokens;
  const char *at = text.data(), *end = at + text.size();
  while (at <= end) {
    Token t = 0;
    const auto [next, err] = std::from_chars(at, end, t);
    if (err != std::errc() || (next != end && *next != ','))
      throw CLI::ValidationError("--tokens", fmt::format("'{}' is not a list such as 1,2,3", text));
    tokens.push_back(t);
    at = next + 1;
  }
  return tokens;
}

void run(const Options& o) {
  using Clock = std::chrono::steady_clock;
  const std::vector<Token> prompt = parse_tokens(o.tokens);
  if (o.temp != 0)
    throw CLI::ValidationError("--temp", "only 0 (the likeliest token each time) is supported so far");
  const EngineOptions options = o.engine.options();
  Engine engine(o.package, options);
  if (!engine.store().holds_all()) fmt::print(stderr, "experts are read with {}\n", describe_reads(engine));
  RoutingLogOption log(o.routing_log, engine);
  const auto sequence = engine.make_sequence();
  if (o.n > sequence->capacity() || prompt.size() + o.n > sequence->capacity() + 1)
    fail(Errc::InvalidArgument, "{} prompt tokens and {} new ones do not fit in the context of {} (--ctx)",
         prompt.size(), o.n, sequence->capacity());
  const auto start = Clock::now();
  auto first = start, last = start;
  StoreStats at_first, at_last;
  Json per_token = Json::array();
  size_t count = 0;
  const auto on_token = [&](Token t) {
    const auto now = Clock::now();
    const StoreStats stats = engine.store_stats();
    if (count == 0) {
      first = now;
      at_first = stats;
    } else {
      Json one = to_json(stats - at_last);
      one["seconds"] = std::chrono::duration<double>(now - last).count();
      per_token.push_back(std::move(one));
    }
    last = now;
    at_last = stats;
    if (!o.json) fmt::print("{}{}", count ? "," : "", t);
    std::fflush(stdout);
    ++count;
  };
  const auto out = engine.generate_greedy(*sequence, prompt, o.n, on_token, log.tap());
  const double prefill = std::chrono::duration<double>(first - start).count();
  const double decode = std::chrono::duration<double>(Clock::now() - first).count();
  log.close();
  if (options.trace) options.trace->close();
  const StoreStats s = engine.store_stats();
  const std::vector<StoreWork> parts{{"prompt", prompt.size(), prefill, at_first},
                                     {"new tokens", out.size() - 1, decode, s - at_first},
                                     {"all", prompt.size() + out.size() - 1, prefill + decode, s}};
  if (o.json)
    fmt::print("{}\n", Json{{"tokens", out},
                            {"prefill_seconds", prefill},
                            {"decode_seconds", decode},
                            {"reads", describe_reads(engine)},
                            {"drive_bytes_per_second", engine.drive().bytes_per_s},
                            {"store", {{"prompt", to_json(at_first)}, {"new_tokens", to_json(s - at_first)}}},
                            {"per_token", per_token}}
                           .dump());
  else
    fmt::print("\n");
  if (o.stats)
    print_store_table(stderr, engine, parts);
  else
    fmt::print(stderr,
               "{} prompt tokens in {:.2f} s, {} more in {:.2f} s; experts: {} hits, {} misses, {} read\n",
               prompt.size(), prefill, out.size() - 1, decode, s.hits, s.misses, format_bytes(s.bytes_read));
}

}  // namespace

void add_run_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("run", "Continue a prompt of token ids");
  cmd->footer("Continues a prompt: token ids in, token ids out, as one comma-separated line on stdout.");
  auto o = std::make_shared<Options>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package")->required();
  cmd->add_option("--tokens", o->tokens, "Prompt: token ids, separated by commas")
      ->required()
      ->type_name("IDS");
  cmd->add_option("-n", o->n, "Tokens to generate")->check(CLI::PositiveNumber)->capture_default_str();
  cmd->add_option("--temp", o->temp, "Temperature; 0 takes the likeliest token")->capture_default_str();
  add_engine_options(*cmd, o->engine);
  add_routing_log_option(*cmd, o->routing_log);
  cmd->add_flag("--stats", o->stats, "Print a table of what was read, found in memory and waited for");
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { run(*o); });
}

}  // namespace moeflux
