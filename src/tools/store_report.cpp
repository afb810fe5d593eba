#include "tools/store_report.h"

#include "base/text.h"

namespace moeflux {
namespace {

std::string per_token(double amount, uint64_t tokens) {
  return tokens ? format_bytes(static_cast<uint64_t>(amount / static_cast<double>(tokens))) : "-";
}

void print_row(std::FILE* out, const char* what, const std::vector<std::string>& cells) {
  fmt::print(out, "{:<26}", what);
  for (const std::string& cell : cells) fmt::print(out, "{:>14}", cell);
  fmt::print(out, "\n");
}

template <class Fn>
std::vector<std::string> cells(const std::vector<StoreWork>& parts, Fn fn) {
  std::vector<std::string> list;
  for (const StoreWork& p : parts) list.push_back(fn(p));
  return list;
}

std::string describe_guesses(const Engine& engine) {
  const Prefetcher& p = engine.prefetcher();
  const PredictorStats &router = p.predictor().foreseen(), &previous = p.predictor().repeated();
  std::string text = fmt::format("guessing ahead is {}", p.guessing() ? "on" : "off");
  if (engine.options().prefetch.mode == PrefetchOptions::Mode::Auto && p.governor().last_gain() != 0)
    text += fmt::format(" (a token took {:+.1f} % time with it)", -100 * p.governor().last_gain());
  if (router.guessed)
    text += fmt::format("; the next router was right in {:.0f} %", 100 * router.share_right());
  if (previous.guessed)
    text += fmt::format("; the token before would have been in {:.0f} %", 100 * previous.share_right());
  return text;
}

}  // namespace

void print_store_table(std::FILE* out, const Engine& engine, const std::vector<StoreWork>& parts) {
  fmt::print(out, "experts: {} of {} in RAM slots ({}); policy {}; reads: {}\n",
             format_bytes(engine.store().slot_bytes()), format_bytes(engine.plan().expert_bytes),
             engine.store().holds_all() ? "all" : "the rest is read as it is needed", engine.options().policy,
             describe_reads(engine));
  if (!engine.store().holds_all()) fmt::print(out, "{}\n", describe_guesses(engine));
  print_row(out, "", cells(parts, [](const StoreWork& p) { return p.name; }));
  const auto number = [](double v, const char* unit) { return fmt::format("{:.2f}{}", v, unit); };
  print_row(out, "tokens", cells(parts, [](const StoreWork& p) { return std::to_string(p.tokens); }));
  print_row(out, "seconds", cells(parts, [&](const StoreWork& p) { return number(p.seconds, ""); }));
  print_row(out, "tokens per second", cells(parts, [&](const StoreWork& p) {
              return p.seconds > 0 ? number(static_cast<double>(p.tokens) / p.seconds, "") : "-";
            }));
  print_row(out, "hits in RAM",
            cells(parts, [](const StoreWork& p) { return std::to_string(p.stats.hits); }));
  print_row(out, "misses", cells(parts, [](const StoreWork& p) { return std::to_string(p.stats.misses); }));
  print_row(out, "hit rate",
            cells(parts, [&](const StoreWork& p) { return number(100 * p.stats.hit_rate(), " %"); }));
  print_row(out, "bytes read",
            cells(parts, [](const StoreWork& p) { return format_bytes(p.stats.bytes_read); }));
  print_row(out, "bytes read per token", cells(parts, [](const StoreWork& p) {
              return per_token(static_cast<double>(p.stats.bytes_read), p.tokens);
            }));
  print_row(out, "waited for reads",
            cells(parts, [&](const StoreWork& p) { return number(p.stats.stall_s, " s"); }));
  print_row(out, "read while waiting", cells(parts, [&](const StoreWork& p) {
              return number(p.stats.stall_bytes_per_s() / 1e9, " GB/s");
            }));
  print_row(out, "read ahead: in time",
            cells(parts, [](const StoreWork& p) { return std::to_string(p.stats.prefetch_useful); }));
  print_row(out, "read ahead: late",
            cells(parts, [](const StoreWork& p) { return std::to_string(p.stats.prefetch_late); }));
  print_row(out, "read ahead: for nothing",
            cells(parts, [](const StoreWork& p) { return std::to_string(p.stats.prefetch_wasted); }));
}

}  // namespace moeflux
