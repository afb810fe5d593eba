#include "server/metrics.h"

#include <fmt/format.h>

#include <cmath>

namespace moeflux {
namespace {

constexpr double kSeconds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
constexpr double kRates[] = {0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000};

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

}  // namespace

void MetricsText::begin(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(help, false), name, type);
}

void MetricsText::sample(const Labels& labels, double value, std::string_view suffix) {
  text_ += name_;
  text_ += suffix;
  if (!labels.empty()) {
    char before = '{';
    for (const auto& [key, label] : labels) {
      text_ += fmt::format("{}{}=\"{}\"", before, key, escaped(label, true));
      before = ',';
    }
    text_ += '}';
  }
  text_ += ' ' + number(value) + '\n';
}

void MetricsText::counter(std::string_view name, std::string_view help, double value) {
  begin(name, "counter", help);
  sample({}, value);
}

void MetricsText::gauge(std::string_view name, std::string_view help, double value) {
  begin(name, "gauge", help);
  sample({}, value);
}

void Histogram::add(double value) {
  ++n_;
  sum_ += value;
  for (size_t i = 0; i < bounds_.size(); ++i)
    if (value <= bounds_[i]) {
      ++counts_[i];
      return;
    }
}

void Histogram::write(MetricsText& out, std::string_view name, std::string_view help) const {
  out.begin(name, "histogram", help);
  uint64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i)
    out.sample({{"le", number(bounds_[i])}}, static_cast<double>(below += counts_[i]), "_bucket");
  out.sample({{"le", "+Inf"}}, static_cast<double>(n_), "_bucket");
  out.sample({}, sum_, "_sum");
  out.sample({}, static_cast<double>(n_), "_count");
}

ServerMetrics::ServerMetrics()
    : request_s_(kSeconds), queue_s_(kSeconds), first_token_s_(kSeconds), tokens_per_s_(kRates) {}

void ServerMetrics::count_text(const TextOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  queue_s_.add(outcome.queue_s);
  if (outcome.first_token_s > 0) first_token_s_.add(outcome.first_token_s);
  if (outcome.result.times.n_steps() > 0) tokens_per_s_.add(outcome.result.times.tokens_per_s());
}

void ServerMetrics::count_request(const std::string& route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
  request_s_.add(seconds);
}

void ServerMetrics::write(MetricsText& out) const {
  const std::lock_guard lock(mutex_);
  out.begin("moeflux_requests_total", "counter", "HTTP requests that have ended");
  for (const auto& [key, n] : requests_)
    out.sample({{"route", key.first}, {"status", std::to_string(key.second)}}, static_cast<double>(n));
  request_s_.write(out, "moeflux_request_seconds", "Time from a request's headers to the end of its answer");
  queue_s_.write(out, "moeflux_queue_seconds", "Time that a text waits before it is taken up");
  first_token_s_.write(out, "moeflux_first_token_seconds", "Time from asking for a text to its first token");
  tokens_per_s_.write(out, "moeflux_text_tokens_per_second", "Tokens per second of a text, after its first");
}

void write_engine_metrics(MetricsText& out, const SchedulerStats& texts, const StoreStats& store,
                          const EngineSizes& sizes) {
  const auto real = [](auto n) { return static_cast<double>(n); };
  out.gauge("moeflux_texts_running", "Texts that are being generated", real(texts.running));
  out.gauge("moeflux_texts_waiting", "Texts that wait to be taken up", real(texts.waiting));
  out.begin("moeflux_texts_total", "counter", "Texts that have ended, and those that were not taken");
  for (const auto& [outcome, n] : {std::pair{"finished", texts.finished},
                                   {"failed", texts.failed},
                                   {"cancelled", texts.cancelled},
                                   {"refused", texts.refused}})
    out.sample({{"outcome", outcome}}, real(n));
  out.counter("moeflux_prompt_tokens_total", "Tokens of prompts that were evaluated",
              real(texts.prompt_tokens));
  out.counter("moeflux_prompt_tokens_reused_total", "Tokens of prompts whose state was kept from before",
              real(texts.reused_tokens));
  out.counter("moeflux_new_tokens_total", "Tokens that were generated", real(texts.new_tokens));
  out.counter("moeflux_steps_total", "Evaluations of a batch", real(texts.steps));
  out.counter("moeflux_step_seconds_total", "Time in these", texts.busy_s);

  const PrefixCacheStats& prefixes = texts.prefixes;
  out.begin("moeflux_prefix_found_total", "counter", "Prompts whose beginning was kept, by where");
  out.sample({{"where", "ram"}}, real(prefixes.n_from_ram));
  out.sample({{"where", "disk"}}, real(prefixes.n_from_disk));
  out.counter("moeflux_prefix_asked_total", "Prompts for which it was looked for", real(prefixes.n_asked));
  out.begin("moeflux_prefix_bytes", "gauge", "What is kept of prompts, by where");
  out.sample({{"where", "ram"}}, real(prefixes.ram_bytes));
  out.sample({{"where", "disk"}}, real(prefixes.disk_bytes));

  const DeviceTierStats& device = texts.device;
  out.begin("moeflux_experts_asked_total", "counter", "Experts that steps asked for, by where they were");
  if (device.exists) out.sample({{"tier", "vram"}}, real(device.found));
  out.sample({{"tier", "ram"}}, real(store.hits));
  out.sample({{"tier", "disk"}}, real(store.misses));
  out.begin("moeflux_expert_hit_ratio", "gauge",
            "Share of the experts asked for that the tier held, since the start");
  if (device.exists) out.sample({{"tier", "vram"}}, device.hit_rate());
  out.sample({{"tier", "ram"}}, store.hit_rate());
  if (device.exists) {
    out.counter("moeflux_experts_copied_total", "Experts copied to the GPU for a step", real(device.copied));
    out.counter("moeflux_experts_computed_by_host_total", "Experts that the processor computed for the GPU",
                real(device.computed));
  }
  out.counter("moeflux_expert_reads_total", "Experts that were read", real(store.reads));
  out.counter("moeflux_expert_read_bytes_total", "Bytes of these", real(store.bytes_read));
  const uint64_t tokens = texts.prompt_tokens + texts.new_tokens;
  out.gauge("moeflux_expert_read_bytes_per_token", "Bytes read per token evaluated, since the start",
            tokens ? real(store.bytes_read) / real(tokens) : 0);
  out.counter("moeflux_expert_stall_seconds_total",
              "Time in which a step had nothing to compute but waited for reads", store.stall_s);
  out.counter("moeflux_expert_stall_bytes_total", "Bytes that arrived in that time", real(store.stall_bytes));
  out.gauge("moeflux_expert_read_bytes_per_second", "Bytes per second while steps waited, since the start",
            store.stall_bytes_per_s());
  out.begin("moeflux_expert_prefetched_total", "counter",
            "Experts read before they were asked for, by what became of them");
  out.sample({{"outcome", "useful"}}, real(store.prefetch_useful));
  out.sample({{"outcome", "late"}}, real(store.prefetch_late));
  out.sample({{"outcome", "wasted"}}, real(store.prefetch_wasted));
  out.counter("moeflux_expert_read_failures_total", "Experts whose read failed", real(store.failed));

  out.begin("moeflux_memory_bytes", "gauge", "Memory that was planned, by what it holds");
  out.sample({{"holds", "resident_weights"}}, real(sizes.resident_bytes));
  out.sample({{"holds", "kv_cache"}}, real(sizes.kv_bytes));
  out.sample({{"holds", "expert_slots"}}, real(sizes.slot_bytes));
  out.gauge("moeflux_expert_bytes", "Bytes of all experts of the model", real(sizes.expert_bytes));
  out.gauge("moeflux_drive_bytes_per_second", "Speed of the drive as measured at the start; 0: not measured",
            sizes.drive_bytes_per_s);
}

}  // namespace moeflux
