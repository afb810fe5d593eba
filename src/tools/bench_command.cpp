#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "base/text.h"
#include "base/threads.h"
#include "gen/bench.h"
#include "gen/machine.h"
#include "tools/bench_report.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

struct Budget {  // of expert slots; neither: what is available
  std::string text = "available";
  std::optional<uint64_t> bytes = {};
  std::optional<double> share = {};  // of all experts

  std::optional<uint64_t> of(uint64_t expert_bytes) const {
    if (!share) return bytes;
    return static_cast<uint64_t>(*share * static_cast<double>(expert_bytes));
  }
};

struct BenchArguments {
  std::string package, svg;
  EngineArguments engine;
  bool machine = false, json = false;
  std::vector<Budget> budgets;
  BenchRequest request;
};

MachineLimits machine_limits(const BenchArguments& o, size_t threads) {
  return measure_machine(choose_ops(o.engine.isa), threads);
}

size_t thread_count(const BenchArguments& o) {
  return o.engine.threads ? o.engine.threads : usable_cores().size();
}

void print_machine(const BenchArguments& o) {
  const size_t all = thread_count(o);
  Json list = Json::array();
  if (!o.json)
    fmt::print("instruction set {}\nthreads   memory read   float32      int8         parallel region\n",
               choose_ops(o.engine.isa).name);
  for (size_t threads = 1; threads <= all; threads = threads == all ? all + 1 : std::min(all, threads * 2)) {
    const MachineLimits m = machine_limits(o, threads);
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

const char* to_string(CacheState state) {
  return state == CacheState::Cold ? "cold" : state == CacheState::Warm ? "warm" : "rotating";
}

void print_json(const BenchArguments& o, const std::vector<BudgetResult>& all) {
  Json budgets = Json::array();
  for (const BudgetResult& b : all) budgets.push_back(to_json(b));
  const Json out{{"package", o.package},
                 {"state", to_string(o.request.state)},
                 {"routing", to_string(o.request.routing)},
                 {"seed", o.request.seed},
                 {"threads", thread_count(o)},
                 {"budgets", budgets}};
  fmt::print("{}\n", out.dump(1, ' ', false, Json::error_handler_t::replace));
}

// Takes memory of its own: no engine is alive then.
BenchLimits measure_limits(const BenchArguments& o, const Package& package, const BenchResult& result) {
  BenchLimits limits;
  if (result.read_experts()) limits.drive = drive_bytes_per_s(package, result.reads);
  if (!result.decode.empty()) limits.memory = result.decode.front().memory_bytes_per_s;
  if (!result.decode.empty() && limits.memory == 0)
    limits.memory = result.plan.device_bytes ? device_memory_bytes_per_s()
                                             : machine_limits(o, result.threads).memory_bytes_per_s;
  return limits;
}

void bench_model(const BenchArguments& o) {
  std::optional<File> svg;  // made at once: a path that cannot be written is refused before the work
  const Package package(o.package, {o.engine.stripes.begin(), o.engine.stripes.end()});
  if (!o.svg.empty()) svg = File::create(o.svg);
  std::vector<BudgetResult> all;
  for (const Budget& budget : o.budgets.empty() ? std::vector<Budget>(1) : o.budgets) {
    BenchRequest request = o.request;
    request.engine = o.engine.options();
    request.engine.ram = budget.of(package.manifest().expert_bytes());
    all.push_back({budget.text, bench_package(o.package, request), {}});
    all.back().limits = measure_limits(o, package, all.back().result);
    if (!o.json) print_budget(all.back());
  }
  if (svg) svg->append(plot_budgets(all, package.manifest().family));
  if (o.json) return print_json(o, all);
  if (all.size() > 1) print_summary(all);
}

// BenchOptions.

Budget parse_budget(const std::string& text) {
  if (!text.ends_with('%')) return {.text = text, .bytes = parse_bytes(text)};
  return {.text = text, .share = parse_share(text)};
}

// An option whose value `parse` understands or refuses with an Error.
template <class Parse>
CLI::Option* add_parsed_option(CLI::App& cmd, const std::string& name, const std::string& help, Parse parse) {
  return cmd.add_option_function<std::string>(
      name,
      [name, parse](const std::string& text) {
        try {
          parse(text);
        } catch (const Error& e) {
          throw CLI::ValidationError(name, e.what());
        }
      },
      help);
}

void add_budgets(CLI::App& cmd, BenchArguments& o) {
  cmd.remove_option(cmd.get_option("--ram"));  // elsewhere one size; here several, and shares
  add_parsed_option(
      cmd, "--ram",
      "Expert slots in RAM: sizes or shares of all experts, separated by commas, measured in turn "
      "(default: what is available)",
      [&o](const std::string& text) {
        for (size_t at = 0; at <= text.size();) {
          const size_t end = std::min(text.find(',', at), text.size());
          o.budgets.push_back(parse_budget(text.substr(at, end - at)));
          at = end + 1;
        }
      })
      ->type_name("25%,8GiB");
}

void add_conditions(CLI::App& cmd, BenchArguments& o) {
  static const std::map<std::string, CacheState> kStates = {
      {"cold", CacheState::Cold}, {"warm", CacheState::Warm}, {"rotating", CacheState::Rotating}};
  cmd.add_option(
         "--state", o.request.state,
         "What the slots hold: nothing (cold), what the tokens before left there (warm), or what another "
         "text left there (rotating)")
      ->transform(CLI::CheckedTransformer(kStates).description(""))
      ->type_name("cold|warm|rotating")
      ->default_str("warm");
  add_parsed_option(
      cmd, "--routing",
      "Who chooses experts: the model, or draws: uniform, zipf:S (rank r has weight r^-S), log:FILE",
      [&o](const std::string& text) { o.request.routing = parse_routing(text); })
      ->type_name("ROUTING")
      ->default_str("model");
  cmd.add_option("--seed", o.request.seed, "Of tokens and drawn routes")->capture_default_str();
}

void check_options(const BenchArguments& o) {
  if (o.machine == !o.package.empty()) throw CLI::RequiredError("PACKAGE or --machine");
  if (o.machine && (!o.svg.empty() || !o.budgets.empty()))
    throw CLI::ValidationError("--machine", "has no use for --ram and --svg");
  if (!o.svg.empty() && !o.request.generate)
    throw CLI::ValidationError("--svg", "shows decoding: -n must not be 0");
  if (o.request.state == CacheState::Rotating && o.request.depths != std::vector<uint64_t>{0})
    throw CLI::ValidationError("--depth",
                               "rotating texts decode after their prefill; give its length as --prompt");
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("bench", "Measure the speed of a model or of this machine");
  cmd->footer(
      "With a package: time to load, prefill and decode in tokens per second (median, least and most of the\n"
      "repetitions) on random tokens, which choose experts almost evenly. Where all experts fit, they are\n"
      "loaded first, and the result is compared with the memory bandwidth that was measured in the same "
      "run.\n"
      "Otherwise they are streamed, and the result is compared with the limit that the drive and the memory\n"
      "set: what was missed at the drive's speed, then all that is touched at the memory's.\n"
      "With --machine: the limits of this processor.");
  auto o = std::make_shared<BenchArguments>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package");
  cmd->add_flag("--machine", o->machine, "Measure memory, arithmetic and the cost of a parallel region");
  cmd->add_option("--prompt", o->request.prompt, "Tokens of the prefill; 0: none")->capture_default_str();
  cmd->add_option("-n", o->request.generate, "Tokens to decode; 0: none")->capture_default_str();
  cmd->add_option("--depth", o->request.depths, "Decode after this many tokens; several, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  cmd->add_option("--sequences", o->request.sequences, "Texts that are decoded together")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  cmd->add_option("--repeat", o->request.repeat,
                  "Repetitions of a prefill, parts into which decoding is cut, or texts in turn")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_engine_options(*cmd, o->engine);
  add_budgets(*cmd, *o);
  add_conditions(*cmd, *o);
  cmd->add_option("--svg", o->svg, "Plot decoding over the budget into this file");
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] {
    check_options(*o);
    o->machine ? print_machine(*o) : bench_model(*o);
  });
}

}  // namespace moeflux
