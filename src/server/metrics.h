// What the server counts, in the text format of Prometheus. Any thread may count and ask.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gen/scheduler.h"

namespace moeflux {

// Writes metrics one after the other: each name once, with its help and type, and its samples.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  void begin(std::string_view name, std::string_view type, std::string_view help);
  void sample(const Labels& labels, double value, std::string_view suffix = "");
  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value);
  const std::string& text() const { return text_; }

 private:
  std::string text_, name_;
};

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size()) {}
  void add(double value);
  void write(MetricsText& out, std::string_view name, std::string_view help) const;

 private:
  std::vector<double> bounds_;    // ascending
  std::vector<uint64_t> counts_;  // values at most that high and above the bound before
  uint64_t n_ = 0;
  double sum_ = 0;
};

class ServerMetrics {
 public:
  ServerMetrics();
  void count_text(const TextOutcome& outcome);
  void count_request(const std::string& route, int status, double seconds);
  void write(MetricsText& out) const;

 private:
  mutable std::mutex mutex_;  // guards everything below
  std::map<std::pair<std::string, int>, uint64_t> requests_;
  Histogram request_s_, queue_s_, first_token_s_, tokens_per_s_;
};

struct EngineSizes {
  uint64_t resident_bytes = 0, kv_bytes = 0, slot_bytes = 0, expert_bytes = 0;
  double drive_bytes_per_s = 0;
};
void write_engine_metrics(MetricsText& out, const SchedulerStats& texts, const StoreStats& store,
                          const EngineSizes& sizes);

}  // namespace moeflux
