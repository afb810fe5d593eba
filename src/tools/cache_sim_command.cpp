#include "store/cache_sim.h"

#include <charconv>
#include <cmath>

#include "base/json.h"
#include "base/text.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

struct SlotCount {  // as the user gives it
  double value = 0;
  bool percent = false;  // of all experts
};

struct CacheSimArguments {
  std::string log;
  std::vector<std::string> slots = {"10%", "25%", "50%"}, policies = policy_names();
  bool json = false;
};

struct Row {
  uint32_t n_slots;
  std::vector<CacheCounts> counts;  // by policy
  CacheCounts optimum;
};

SlotCount parse_slot_count(const std::string& text) {
  const bool percent = text.ends_with('%');
  const char* end = text.data() + text.size() - percent;
  SlotCount count{0, percent};
  const auto [next, err] = std::from_chars(text.data(), end, count.value);
  const bool whole = percent || count.value == std::floor(count.value);
  if (err != std::errc() || next != end || !whole || !(count.value > 0) ||
      count.value > (percent ? 100 : 1e9))
    throw CLI::ValidationError(
        "--slots",
        fmt::format("'{}' is neither a number of slots nor a share of all experts such as 25%", text));
  return count;
}

uint32_t slots_of(const SlotCount& count, const CacheTrace& trace, const std::string& source) {
  const uint32_t all = trace.shape.n_all_experts();
  const double wanted = count.percent ? std::floor(count.value / 100 * all) : count.value;
  if (wanted < trace.largest_group)
    fail(Errc::InvalidArgument,
         "{}: {} slots are too few: a step uses {} experts of one layer at the same time", source, wanted,
         trace.largest_group);
  return static_cast<uint32_t>(std::min<double>(wanted, all));
}

std::vector<Row> simulate(const CacheSimArguments& o, const std::vector<SlotCount>& slots,
                          const CacheTrace& trace) {
  std::vector<Row> rows;
  for (const SlotCount& count : slots) {
    Row row{slots_of(count, trace, o.log), {}, {}};
    for (const std::string& name : o.policies) {
      const auto policy = make_policy(name, trace.policy_shape(row.n_slots));
      row.counts.push_back(replay(trace, *policy, row.n_slots));
    }
    row.optimum = replay_optimum(trace, row.n_slots);
    rows.push_back(std::move(row));
  }
  return rows;
}

double per_token(uint64_t n, const CacheTrace& trace) {
  return static_cast<double>(n) / static_cast<double>(std::max<uint64_t>(1, trace.n_tokens));
}

Json to_json(const CacheCounts& c, const CacheTrace& trace) {
  return {{"hit_rate", c.hit_rate()},
          {"hits", c.hits},
          {"misses", c.misses},
          {"misses_per_token", per_token(c.misses, trace)}};
}

void print_json(const CacheSimArguments& o, const CacheTrace& t, const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows) {
    Json policies;
    for (size_t i = 0; i < o.policies.size(); ++i) policies[o.policies[i]] = to_json(row.counts[i], t);
    list.push_back({{"slots", row.n_slots}, {"policies", policies}, {"optimum", to_json(row.optimum, t)}});
  }
  const Json out{
      {"layers", t.shape.layers.size()},
      {"n_experts", t.shape.n_experts},
      {"top_k", t.shape.top_k},
      {"record_bytes", t.shape.record_bytes},
      {"decode", {{"steps", t.n_steps}, {"tokens", t.n_tokens}, {"experts_asked", t.asked.size()}}},
      {"prefill", {{"steps", t.n_sweeps}, {"tokens", t.n_sweep_tokens}, {"experts_asked", t.n_sweep_asked}}},
      {"repeated_share", repeated_share(t)},
      {"results", list}};
  fmt::print("{}\n", out.dump(1));
}

void print_table(const CacheSimArguments& o, const CacheTrace& t, const std::vector<Row>& rows) {
  fmt::print("{:>8} {:>8}", "slots", "of all");
  for (const std::string& name : o.policies) fmt::print(" {:>9}", name);
  fmt::print(" {:>9}   {}\n", "optimum", "misses per token: first policy, optimum");
  for (const Row& row : rows) {
    fmt::print("{:>8} {:>6.1f} %", row.n_slots, 100.0 * row.n_slots / t.shape.n_all_experts());
    for (const CacheCounts& c : row.counts) fmt::print(" {:>7.2f} %", 100 * c.hit_rate());
    fmt::print(" {:>7.2f} %   {:.1f} ({}), {:.1f} ({})\n", 100 * row.optimum.hit_rate(),
               per_token(row.counts[0].misses, t),
               format_bytes(static_cast<uint64_t>(per_token(row.counts[0].misses * t.shape.record_bytes, t))),
               per_token(row.optimum.misses, t),
               format_bytes(static_cast<uint64_t>(per_token(row.optimum.misses * t.shape.record_bytes, t))));
  }
}

void print_summary(const CacheTrace& t) {
  fmt::print(stderr,
             "{} layers of {} experts, {} per token; decoding: {} tokens in {} steps, {} experts asked for, "
             "{:.1f} % of them as in the layer's step before\n",
             t.shape.layers.size(), t.shape.n_experts, t.shape.top_k, t.n_tokens, t.n_steps, t.asked.size(),
             100 * repeated_share(t));
  if (t.n_sweeps)
    fmt::print(
        stderr,
        "prefill, which does not go through the cache: {} tokens in {} steps of more than {}, {} experts\n",
        t.n_sweep_tokens, t.n_sweeps, kMostDecodeTokens, t.n_sweep_asked);
}

void cache_sim(const CacheSimArguments& o) {
  std::vector<SlotCount> slots;
  for (const std::string& text : o.slots) slots.push_back(parse_slot_count(text));
  RoutingLogReader log(o.log);
  const CacheTrace trace = read_cache_trace(log);
  if (trace.asked.empty())
    fail(Errc::InvalidArgument, "{}: no step of {} tokens or fewer in it: there is no decoding to replay",
         o.log, kMostDecodeTokens);
  const std::vector<Row> rows = simulate(o, slots, trace);
  print_summary(trace);
  o.json ? print_json(o, trace, rows) : print_table(o, trace, rows);
}

}  // namespace

void add_cache_sim_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("cache-sim", "Replay recorded routes over eviction policies");
  cmd->footer(
      "LOG is what `run` and `perplexity` record with --routing-log. For every number of slots, printed is "
      "the share\n"
      "of experts that would have been in memory when they were needed: with each policy, and at best (the "
      "optimum\n"
      "knows the future: what is used farthest ahead leaves). All start with empty slots. Steps of more than "
      "32\n"
      "tokens are prefill: they touch each expert of a layer once, past the cache of decoding, and are only "
      "counted.\n"
      "\n"
      "  moeflux perplexity model.moe ids.jsonl --chunk 1 --routing-log routes.txt\n"
      "  moeflux cache-sim routes.txt --slots 512,1024,25%");
  auto o = std::make_shared<CacheSimArguments>();
  cmd->add_option("LOG", o->log, "Recorded routes")->required();
  cmd->add_option("--slots", o->slots, "Numbers of slots, or shares of all experts, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N|N%")
      ->capture_default_str();
  cmd->add_option("--policy", o->policies, "Policies, separated by commas (default: all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(policy_names()));
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { cache_sim(*o); });
}

}  // namespace moeflux
