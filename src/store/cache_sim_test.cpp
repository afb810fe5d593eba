#include "store/cache_sim.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <random>

#include "store/test_routes.h"

namespace moeflux {
namespace {

using Ids = std::vector<uint32_t>;

RoutingShape shape(uint32_t n_layers, uint32_t n_experts, uint32_t top_k) {
  RoutingShape s{{}, n_experts, top_k, 4096};
  for (uint32_t l = 0; l < n_layers; ++l) s.layers.push_back(l);
  return s;
}

CacheTrace trace_of(const RoutingShape& s, const std::vector<RoutingStep>& steps) {
  CacheTrace trace;
  trace.shape = s;
  for (const RoutingStep& step : steps) trace.add(step);
  return trace;
}

// Tries everything: the fewest misses after each group, for every set of experts that may be in memory.
uint64_t fewest_misses(const CacheTrace& trace, uint32_t n_slots) {
  const uint32_t n_sets = 1u << trace.shape.n_all_experts();
  std::map<uint32_t, uint64_t> best = {{0, 0}};  // set in memory -> misses so far
  size_t begin = 0;
  for (const size_t end : trace.group_ends) {
    uint32_t group = 0;
    for (size_t i = begin; i < end; ++i) group |= 1u << trace.asked[i];
    begin = end;
    std::map<uint32_t, uint64_t> next;
    for (const auto& [before, misses] : best)
      for (uint32_t after = 0; after < n_sets; ++after) {
        const bool reachable = (after & ~(before | group)) == 0;  // nothing is read that was not asked for
        if (!reachable || (after & group) != group || std::popcount(after) > static_cast<int>(n_slots))
          continue;
        const uint64_t sum = misses + static_cast<uint64_t>(std::popcount(group & ~before));
        const auto it = next.try_emplace(after, sum).first;
        it->second = std::min(it->second, sum);
      }
    best = std::move(next);
  }
  uint64_t least = UINT64_MAX;
  for (const auto& [set, misses] : best) least = std::min(least, misses);
  return least;
}

TEST(CacheSim, TheOptimumIsTheBestOfAllWays) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    const uint32_t n_layers = 1 + random() % 2, n_experts = 8 / n_layers, top_k = 1 + random() % 2;
    RecipeRoutes source({n_layers, n_experts, top_k, 0.5, 0, 0.2, random()});
    CacheTrace trace;
    trace.shape = source.shape();
    for (int i = 0; i < 12; ++i) trace.add(source.next());
    for (uint32_t n_slots = top_k; n_slots <= 5; ++n_slots) {
      const CacheCounts counts = replay_optimum(trace, n_slots);
      EXPECT_EQ(counts.misses, fewest_misses(trace, n_slots)) << round << ": " << n_slots << " slots";
      EXPECT_EQ(counts.hits + counts.misses, trace.asked.size());
    }
  }
}

TEST(CacheSim, NoPolicyBeatsTheOptimum) {
  RecipeRoutes source({6, 16, 3, 1.0, 0.1, 0.3, 2});
  CacheTrace trace;
  trace.shape = source.shape();
  for (int i = 0; i < 300; ++i) trace.add(source.next());
  for (const uint32_t n_slots : {3u, 10u, 40u, 96u}) {
    const CacheCounts best = replay_optimum(trace, n_slots);
    for (const std::string& name : policy_names()) {
      const auto policy = make_policy(name, trace.policy_shape(n_slots));
      const CacheCounts counts = replay(trace, *policy, n_slots);
      EXPECT_LE(counts.hits, best.hits) << name << ", " << n_slots << " slots";
      EXPECT_EQ(counts.hits + counts.misses, trace.asked.size());
      if (n_slots == 96) {
        EXPECT_EQ(counts, best) << name << ": all fit, only the first uses miss";
      }
    }
  }
}

TEST(CacheSim, LruThrashesWhereTheRoundIsLongerThanTheCache) {
  // Each token uses the same expert of each of 4 layers; there are 3 slots.
  const std::vector<RoutingStep> steps(50, RoutingStep{1, {{0}, {0}, {0}, {0}}});
  const CacheTrace trace = trace_of(shape(4, 2, 1), steps);
  const auto lru = make_policy("lru", trace.policy_shape(3));
  EXPECT_EQ(replay(trace, *lru, 3).hits, 0u);
  const auto forecast = make_policy("forecast", trace.policy_shape(3));
  const CacheCounts best = replay_optimum(trace, 3);
  EXPECT_EQ(best.misses, 4 + 196u / 3);  // one of three uses
  EXPECT_GT(replay(trace, *forecast, 3).hits, best.hits * 9 / 10);
}

TEST(CacheSim, AnExpertCountsOncePerLayerAndStep) {
  const CacheTrace trace = trace_of(shape(1, 8, 2), {{3, {{1, 2, 2, 1, 2, 5}}}, {1, {{5, 6}}}});
  EXPECT_EQ(trace.asked, (std::vector<ExpertId>{1, 2, 5, 5, 6}));
  EXPECT_EQ(trace.largest_group, 3u);
  EXPECT_EQ(trace.n_steps, 2u);
  EXPECT_EQ(trace.n_tokens, 4u);
  const CacheCounts best = replay_optimum(trace, 3);
  EXPECT_EQ(best.hits, 1u);
  EXPECT_EQ(best.misses, 4u);
  EXPECT_DOUBLE_EQ(best.hit_rate(), 0.2);
  EXPECT_DOUBLE_EQ(repeated_share(trace), 0.5);
}

TEST(CacheSim, SweepsAreCountedApart) {
  RoutingStep sweep{kMostDecodeTokens + 1, {Ids(kMostDecodeTokens + 1, 3), Ids(kMostDecodeTokens + 1, 4)}};
  sweep.ids[1][0] = 0;
  const RoutingStep one{1, {{1}, {1}}};
  const CacheTrace with = trace_of(shape(2, 8, 1), {one, sweep, one, one});
  const CacheTrace without = trace_of(shape(2, 8, 1), {one, one, one});
  EXPECT_EQ(with.n_sweeps, 1u);
  EXPECT_EQ(with.n_sweep_tokens, kMostDecodeTokens + 1);
  EXPECT_EQ(with.n_sweep_asked, 3u);
  EXPECT_EQ(with.asked, without.asked);
  const RoutingStep largest{kMostDecodeTokens, {Ids(kMostDecodeTokens, 3), Ids(kMostDecodeTokens, 4)}};
  EXPECT_EQ(trace_of(shape(2, 8, 1), {largest}).n_sweeps, 0u);
}

}  // namespace
}  // namespace moeflux
