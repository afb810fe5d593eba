// A small trained model (tests/data/demo: a 4-bit package, and ids of texts that it was not trained on): what
// the fast precision and smaller KV caches cost end to end, where random weights would say little.
#include <gtest/gtest.h>

#include "gen/perplexity.h"
#include "support/support.h"

namespace moeflux {
namespace {

PerplexityResult against_exact(EngineOptions options, const std::string& reference_backend = "cpu") {
  const fs::path package = test::data_folder() / "demo" / "storyteller.moe";
  options.ctx = 512;
  EngineOptions exact;
  exact.precision = Precision::Exact;
  exact.backend = reference_backend;
  exact.ctx = 512;
  PerplexityMeter meter({package, options}, {{package, exact}});
  return meter.measure(read_documents(test::data_folder() / "demo" / "heldout_ids.jsonl", 1500));
}

double routes_that_differ(const PerplexityResult& r) {
  const LayerRoutes routes = r.reference->all_routes();
  return static_cast<double>(routes.n_different) / static_cast<double>(routes.n_picks);
}

TEST(DemoModel, FastPrecisionAndSmallKvCachesStayCloseToExact) {
  for (const KvType kv : {KvType::Bf16, KvType::Q8}) {
    EngineOptions fast;
    fast.kv = kv;
    const PerplexityResult r = against_exact(fast);
    EXPECT_LT(r.reference->kl.mean(), 8e-3);        // measured 4.1e-3
    EXPECT_GT(r.reference->top_agreement(), 0.94);  // 96.8 %
    EXPECT_LT(routes_that_differ(r), 0.02);         // 0.9 %
  }
}

TEST(DemoModel, TheVectorBackendEqualsTheOracle) {
  EngineOptions exact;
  exact.precision = Precision::Exact;
  const PerplexityResult r = against_exact(exact, "cpu-ref");
  EXPECT_LT(r.reference->kl.mean(), 1e-9);
  EXPECT_EQ(r.reference->top_agreement(), 1);
  EXPECT_LT(routes_that_differ(r), 1e-4);
}

}  // namespace
}  // namespace moeflux
