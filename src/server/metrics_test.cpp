#include "server/metrics.h"

#include <gtest/gtest.h>

namespace moeflux {
namespace {

std::string engine_metrics(const DeviceTierStats& device) {
  SchedulerStats texts;
  texts.device = device;
  MetricsText out;
  write_engine_metrics(out, texts, {}, {});
  return out.text();
}

bool has_line(const std::string& text, const std::string& line) {
  return text.find("\n" + line + "\n") != text.npos;
}

TEST(EngineMetrics, HaveTheGpusTierWhereThereIsOne) {
  EXPECT_EQ(engine_metrics({}).find("vram"), std::string::npos);
  const std::string part = engine_metrics({.exists = true, .found = 30, .copied = 8, .computed = 2});
  EXPECT_TRUE(has_line(part, "moeflux_experts_asked_total{tier=\"vram\"} 30")) << part;
  EXPECT_TRUE(has_line(part, "moeflux_expert_hit_ratio{tier=\"vram\"} 0.75")) << part;
  EXPECT_TRUE(has_line(part, "moeflux_experts_copied_total 8")) << part;
  EXPECT_TRUE(has_line(part, "moeflux_experts_computed_by_host_total 2")) << part;
  const std::string all = engine_metrics({.exists = true, .holds_all = true});
  EXPECT_TRUE(has_line(all, "moeflux_expert_hit_ratio{tier=\"vram\"} 1")) << all;
}

}  // namespace
}  // namespace moeflux
