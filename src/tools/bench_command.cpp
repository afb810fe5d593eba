#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/threads.h"
#include "gen/machine.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string package;
  EngineArguments engine;
  bool machine = false, json = false;
  uint64_t prompt = 512, generate = 64, repeat = 3;
  std::vector<uint64_t> depths = {0};
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Rate {  // of several repetitions
  double median = 0, least = 0, most = 0;
};

Rate rate_of(std::vector<double> v) {
  std::ranges::sort(v);
  return {v[v.size() / 2], v.front(), v.back()};
}

Json to_json(const Rate& r) { return {{"median", r.median}, {"min", r.least}, {"max", r.most}}; }

std::vector<Token> random_tokens(size_t n, uint64_t vocab, uint64_t seed) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<Token>((seed >> 33) % vocab));
  }
  return tokens;
}

MachineLimits limits(const Options& o, size_t threads) {
  return measure_machine(choose_ops(o.engine.isa), threads);
}

void print_machine(const Options& o) {
  const size_t all = o.engine.threads ? o.engine.threads : usable_cores().size();
  Json list = Json::array();
  if (!o.json)
    fmt::print("instruction set {}\nthreads   memory read   float32      int8         parallel region\n",
               choose_ops(o.engine.isa).name);
  for (size_t threads = 1; threads <= all; threads = threads == all ? all + 1 : std::min(all, threads * 2)) {
    const MachineLimits m = limits(o, threads);
    if (o.json)
      list.push_back({{"threads", threads},
                      {"memory_bytes_per_second", m.memory_bytes_per_s},
                      {"float32_flops", m.float_flops},
                      {"int8_ops", m.int8_ops},
                      {"region_us", m.region_us}});
    else
      fmt::print("{:<8} {:>6.1f} GB/s {:>8.0f} GFLOPS {:>6.0f} GOPS {:>8.2f} us\n", threads,
                 m.memory_bytes_per_s / 1e9, m.float_flops / 1e9, m.int8_ops / 1e9, m.region_us);
  }
  if (o.json)
    fmt::print("{}\n", Json{{"isa", std::string(choose_ops(o.engine.isa).name)}, {"limits", list}}.dump(1));
}

void print_rate(const char* what, uint64_t n, uint64_t depth, const Rate& r, const std::string& note) {
  fmt::print("{:<8} {:>5} tokens at {:>6}: {:>8.2f} tok/s ({:.2f}-{:.2f}){}\n", what, n, depth, r.median,
             r.least, r.most, note);
  std::fflush(stdout);
}

void bench_model(const Options& o) {
  EngineOptions options = o.engine.options();
  const uint64_t deepest = std::ranges::max(o.depths);
  options.ctx = std::max({options.ctx, deepest + o.generate, o.prompt});
  const auto start = Clock::now();
  Engine engine(o.package, options);
  engine.load_experts();
  const double load = seconds_since(start);
  const MemoryPlan& plan = engine.plan();
  const uint64_t token_bytes = plan.token_resident_bytes + plan.token_expert_bytes;
  if (!o.json)
    fmt::print("loaded in {:.2f} s; planned memory {}; {} of weights per decoded token\n", load,
               format_bytes(plan.host_bytes), format_bytes(token_bytes));
  struct Use {
    uint64_t depth;
    double bytes_per_s;
  };
  std::vector<Use> uses;
  Json out{{"load_seconds", load}, {"planned_bytes", plan.host_bytes}, {"token_bytes", token_bytes}};

  if (o.prompt) {
    std::vector<double> rates;
    for (uint64_t r = 0; r <= o.repeat; ++r) {  // the first one warms up
      const auto sequence = engine.make_sequence();
      const auto tokens = random_tokens(o.prompt, engine.config().n_vocab, r);
      const auto begin = Clock::now();
      engine.eval(*sequence, tokens);
      if (r > 0) rates.push_back(static_cast<double>(o.prompt) / seconds_since(begin));
    }
    const Rate rate = rate_of(rates);
    if (!o.json) print_rate("prefill", o.prompt, 0, rate, "");
    out["prefill"] = {{"tokens", o.prompt}, {"tokens_per_second", to_json(rate)}};
  }
  for (const uint64_t depth : o.generate ? o.depths : std::vector<uint64_t>{}) {
    std::vector<double> rates;
    const auto sequence = engine.make_sequence();
    if (depth) engine.eval(*sequence, random_tokens(depth, engine.config().n_vocab, 7));
    const uint64_t rounds = std::min<uint64_t>(o.repeat, std::max<uint64_t>(1, o.generate / 4));
    const auto tokens = random_tokens(o.generate, engine.config().n_vocab, 9);
    for (uint64_t r = 0; r < rounds; ++r) {  // equal parts of the generated tokens
      const uint64_t from = r * o.generate / rounds, to = (r + 1) * o.generate / rounds;
      const auto begin = Clock::now();
      for (uint64_t i = from; i < to; ++i) engine.eval(*sequence, {&tokens[i], 1});
      rates.push_back(static_cast<double>(to - from) / seconds_since(begin));
    }
    const Rate rate = rate_of(rates);
    // Attention reads the keys and values of all positions so far.
    const double kv = static_cast<double>(plan.kv_bytes) * static_cast<double>(depth + o.generate / 2) /
                      static_cast<double>(plan.ctx);
    const double bandwidth = rate.median * (static_cast<double>(token_bytes) + (depth ? kv : 0.0));
    uses.push_back({depth, bandwidth});
    if (!o.json) print_rate("decode", o.generate, depth, rate, fmt::format("; {:.1f} GB/s", bandwidth / 1e9));
    out["decode"].push_back({{"depth", depth},
                             {"tokens", o.generate},
                             {"tokens_per_second", to_json(rate)},
                             {"bytes_per_second", bandwidth}});
  }
  const uint64_t peak = peak_memory();
  out["peak_rss_bytes"] = peak;
  std::optional<MachineLimits> m;  // last: it needs memory of its own
  if (!uses.empty()) m = limits(o, engine.threads());
  if (m) out["memory_limit_bytes_per_second"] = m->memory_bytes_per_s;
  if (o.json) {
    fmt::print("{}\n", out.dump(1));
    return;
  }
  fmt::print("peak memory {}\n", format_bytes(peak));
  for (const Use& u : uses)
    fmt::print("decode at {} uses {:.0f} % of the {:.1f} GB/s that {} threads can read\n", u.depth,
               100 * u.bytes_per_s / m->memory_bytes_per_s, m->memory_bytes_per_s / 1e9, m->threads);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("bench", "Measure the speed of a model or of this machine");
  cmd->footer(
      "With a package: time to load, prefill and decode in tokens per second (median, least and most of the\n"
      "repetitions) on random tokens, which choose experts almost evenly, and how much of the memory "
      "bandwidth,\n"
      "measured in the same run, decoding uses. With --machine: the limits of this processor.");
  auto o = std::make_shared<Options>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package");
  cmd->add_flag("--machine", o->machine, "Measure memory, arithmetic and the cost of a parallel region");
  cmd->add_option("--prompt", o->prompt, "Tokens of the prefill; 0: none")->capture_default_str();
  cmd->add_option("-n", o->generate, "Tokens to decode; 0: none")->capture_default_str();
  cmd->add_option("--depth", o->depths, "Decode after this many tokens; several, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  cmd->add_option("--repeat", o->repeat, "Repetitions")->check(CLI::Range(1, 1000))->capture_default_str();
  add_engine_options(*cmd, o->engine);
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] {
    if (o->machine == !o->package.empty()) throw CLI::RequiredError("PACKAGE or --machine");
    o->machine ? print_machine(*o) : bench_model(*o);
  });
}

}  // namespace moeflux
