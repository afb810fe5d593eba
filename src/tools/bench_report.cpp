#include "tools/bench_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "base/text.h"
#include "tools/plot.h"

namespace moeflux {
namespace {

double in_gb(double bytes) { return bytes / 1e9; }
std::string bytes_text(double bytes) { return format_bytes(static_cast<uint64_t>(std::max(0.0, bytes))); }

double limit_of(const BenchResult& r, const Measured& decoded, const BenchLimits& limits) {
  return decode_limit(decoded.per_token(decoded.missed_bytes()), r.token_bytes(decoded), limits.drive,
                      limits.memory);
}

void print_rate(const char* what, const Measured& m, const std::string& note) {
  fmt::print("{:<8} {:>5} tokens at {:>6}: {:>8.2f} tok/s ({:.2f}-{:.2f}){}\n", what, m.length, m.depth,
             m.rate.median, m.rate.least, m.rate.most, note);
}

void print_store(const Measured& m, const BenchLimits& limits) {
  const StoreStats& s = m.store;
  fmt::print("         hit rate {:.1f} %; {} read per token, {} in all, of {} of experts that were needed\n",
             100 * s.hit_rate(), bytes_text(m.per_token(static_cast<double>(s.bytes_read))),
             format_bytes(s.bytes_read), format_bytes(m.touched_expert_bytes));
  fmt::print("         {:.1f} % of the time waiting for experts", 100 * m.stall_share());
  if (s.stall_s > 0) fmt::print(", which then came at {:.2f} GB/s", in_gb(s.stall_bytes_per_s()));
  if (s.stall_s > 0 && limits.drive > 0)
    fmt::print(" ({:.0f} % of the drive)", 100 * s.stall_bytes_per_s() / limits.drive);
  fmt::print("\n         prefetched {}: {} useful, {} late, {} wasted\n", s.prefetched, s.prefetch_useful,
             s.prefetch_late, s.prefetch_wasted);
}

void print_limit(const BenchResult& r, const Measured& decoded, const BenchLimits& limits) {
  const double limit = limit_of(r, decoded, limits);
  fmt::print(
      "         limit {:.2f} tok/s ({} from the drive, {} from memory per token): {:.0f} % of it reached\n",
      limit, bytes_text(decoded.per_token(decoded.missed_bytes())), bytes_text(r.token_bytes(decoded)),
      100 * decoded.rate.median / limit);
}

Json limit_json(double limit) { return limit > 0 ? Json(limit) : Json(); }  // null: not measured

Json to_json(const Rate& r) { return {{"median", r.median}, {"min", r.least}, {"max", r.most}}; }

Json to_json(const Measured& m, const BenchLimits& limits) {
  const StoreStats& s = m.store;
  return {{"depth", m.depth},
          {"tokens", m.length},
          {"sequences", m.sequences},
          {"measured_tokens", m.tokens},
          {"seconds", m.seconds},
          {"tokens_per_second", to_json(m.rate)},
          {"hits", s.hits},
          {"misses", s.misses},
          {"hit_rate", s.hit_rate()},
          {"reads", s.reads},
          {"bytes_read", s.bytes_read},
          {"bytes_read_per_token", m.per_token(static_cast<double>(s.bytes_read))},
          {"missed_bytes_per_token", m.per_token(m.missed_bytes())},
          {"touched_expert_bytes", m.touched_expert_bytes},
          {"touched_expert_bytes_per_token", m.per_token(static_cast<double>(m.touched_expert_bytes))},
          {"stall_seconds", s.stall_s},
          {"stall_share", m.stall_share()},
          {"stall_bytes_per_second", s.stall_bytes_per_s()},
          {"stall_drive_share", limits.drive > 0 ? Json(s.stall_bytes_per_s() / limits.drive) : Json()},
          {"prefetched", s.prefetched},
          {"prefetch_useful", s.prefetch_useful},
          {"prefetch_late", s.prefetch_late},
          {"prefetch_wasted", s.prefetch_wasted},
          {"failed_reads", s.failed}};
}

// Of the memory's speed while the tokens were decoded, where that was measured.
double memory_share(const BenchResult& r, const Measured& d, const BenchLimits& limits) {
  return r.token_bytes(d) * (d.tokens_per_byte > 0 ? d.tokens_per_byte : d.rate.median / limits.memory);
}

Json decode_json(const BenchResult& r, const Measured& d, const BenchLimits& limits) {
  Json out = to_json(d, limits);
  const double limit = limit_of(r, d, limits), bytes = r.token_bytes(d);
  out["token_bytes"] = bytes;
  out["bytes_per_second"] = d.rate.median * bytes;
  out["memory_share"] = memory_share(r, d, limits);
  out["limit_tokens_per_second"] = limit;
  out["limit_share"] = d.rate.median / limit;
  return out;
}

}  // namespace

void print_budget(const BudgetResult& b) {
  const BenchLimits& limits = b.limits;
  const BenchResult& r = b.result;
  const MemoryPlan& p = r.plan;
  fmt::print("{} of {} of experts in RAM ({}); loaded in {:.2f} s; planned memory {}\n",
             format_bytes(p.ram_slot_bytes), format_bytes(p.expert_bytes), b.budget, r.load_s,
             format_bytes(p.host_bytes));
  if (p.device_bytes)
    fmt::print("{} of experts on the GPU ({:.0f} %); {} of its memory planned\n",
               format_bytes(p.vram_slot_bytes),
               100 * static_cast<double>(p.vram_slot_bytes) /
                   static_cast<double>(std::max<uint64_t>(p.expert_bytes, 1)),
               format_bytes(p.device_bytes));
  if (r.warmup_tokens)
    fmt::print("warm-up  {} tokens; the slots were {}full\n", r.warmup_tokens,
               r.slots_filled ? "" : "not yet ");
  if (r.prefill) print_rate("prefill", *r.prefill, "");
  if (r.prefill && !r.in_memory) print_store(*r.prefill, limits);
  for (const Measured& d : r.decode) {
    const double bandwidth = d.rate.median * r.token_bytes(d);
    const std::string together = d.sequences > 1 ? fmt::format(", {} texts together", d.sequences) : "";
    print_rate("decode", d, fmt::format("{}; {:.1f} GB/s", together, in_gb(bandwidth)));
    if (r.in_memory) {
      fmt::print("         {:.0f} % of the {:.1f} GB/s that {} can read\n", 100 * memory_share(r, d, limits),
                 in_gb(d.memory_bytes_per_s > 0 ? d.memory_bytes_per_s : limits.memory),
                 p.device_bytes ? "the GPU" : fmt::format("{} threads", r.threads));
    } else {
      print_store(d, limits);
      print_limit(r, d, limits);
    }
  }
  if (const DeviceTierStats& d = r.device; d.copy_bytes_per_s > 0)  // else the host was never asked
    fmt::print(
        "tiers    {} experts found on the GPU, {} copied to it at up to {:.1f} GB/s, {} computed by the "
        "processor at {:.1f} GB/s\n",
        d.found, d.copied, d.copy_bytes_per_s / 1e9, d.computed, d.host_bytes_per_s / 1e9);
  if (const DeviceTierStats& d = r.device; d.ahead + d.unused > 0)
    fmt::print("         {} of the copies were begun before the choice, and {} others for nothing\n", d.ahead,
               d.unused);
  if (limits.memory > 0)
    fmt::print("memory   {:.1f} GB/s {}\n", in_gb(limits.memory),
               p.device_bytes ? "of the GPU, read and written" : fmt::format("with {} threads", r.threads));
  if (limits.drive > 0)
    fmt::print("drive    {:.2f} GB/s, random experts, {}\n", in_gb(limits.drive), to_string(r.reads));
  fmt::print("peak memory {}, {:.1f} % of the plan{}\n", format_bytes(r.peak_bytes),
             100 * static_cast<double>(r.peak_bytes) / static_cast<double>(p.host_bytes),
             r.peak_is_own ? "" : " (of the whole process so far: this system cannot reset it)");
  std::fflush(stdout);
}

void print_summary(const std::vector<BudgetResult>& all) {
  fmt::print("\n{:>10} {:>11} {:>11} {:>11} {:>9} {:>9} {:>7} {:>9} {:>6}\n", "budget", "slots", "planned",
             "peak", "prefill", "decode", "hits", "limit", "of it");
  for (const BudgetResult& b : all) {
    const BenchResult& r = b.result;
    fmt::print("{:>10} {:>11} {:>11} {:>11} {:>9}", b.budget, format_bytes(r.plan.ram_slot_bytes),
               format_bytes(r.plan.host_bytes), format_bytes(r.peak_bytes),
               r.prefill ? fmt::format("{:.2f}", r.prefill->rate.median) : "-");
    if (r.decode.empty()) {
      fmt::print("\n");
      continue;
    }
    const Measured& d = r.decode.front();
    const double limit = limit_of(r, d, b.limits);
    fmt::print(" {:>9.2f} {:>5.1f} % {:>9.2f} {:>4.0f} %\n", d.rate.median, 100 * d.store.hit_rate(), limit,
               100 * d.rate.median / limit);
  }
}

Json to_json(const BudgetResult& b) {
  const BenchLimits& limits = b.limits;
  const BenchResult& r = b.result;
  const MemoryPlan& p = r.plan;
  Json decode = Json::array();
  for (const Measured& d : r.decode) decode.push_back(decode_json(r, d, limits));
  return {{"budget", b.budget},
          {"slot_bytes", p.ram_slot_bytes},
          {"expert_bytes", p.expert_bytes},
          {"planned_bytes", p.host_bytes},
          {"peak_rss_bytes", r.peak_bytes},
          {"peak_rss_is_of_this_budget", r.peak_is_own},
          {"token_bytes", p.token_resident_bytes + p.token_expert_bytes},
          {"memory_limit_bytes_per_second", limit_json(limits.memory)},
          {"drive_bytes_per_second", limit_json(limits.drive)},
          {"reads", to_string(r.reads)},
          {"load_seconds", r.load_s},
          {"warmup_tokens", r.warmup_tokens},
          {"slots_filled", r.slots_filled},
          {"prefill", r.prefill ? to_json(*r.prefill, limits) : Json()},
          {"decode", decode}};
}

std::string plot_budgets(std::vector<BudgetResult> all, const std::string& family) {
  std::erase_if(all, [](const BudgetResult& b) { return b.result.decode.empty(); });
  std::ranges::sort(all, {}, [](const BudgetResult& b) { return b.result.plan.ram_slot_bytes; });
  PlotSeries speed{.name = "decode"}, limit{.name = "limit", .dashed = true}, hits{.name = "hit rate"};
  Plot plot{.title = family + ": decoding over the budget of expert slots",
            .x_label = "expert slots in RAM, GiB"};
  for (const BudgetResult& b : all) {
    const Measured& d = b.result.decode.front();
    plot.x.push_back(static_cast<double>(b.result.plan.ram_slot_bytes) / 0x1p30);
    speed.values.push_back(d.rate.median);
    limit.values.push_back(limit_of(b.result, d, b.limits));
    hits.values.push_back(100 * d.store.hit_rate());
  }
  plot.panels = {{.y_label = "tok/s", .series = {speed, limit}},
                 {.y_label = "hit rate, %", .series = {hits}, .y_most = 100}};
  return to_svg(plot);
}

}  // namespace moeflux
