#include "store/policy.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "store/cache_sim.h"
#include "store/test_routes.h"

namespace moeflux {
namespace {

const auto kAnyone = [](ExpertId) { return true; };

TEST(Policy, NamesAreThoseThatCanBeMade) {
  ASSERT_FALSE(policy_names().empty());
  for (const std::string& name : policy_names()) EXPECT_NE(make_policy(name, {2, 4, 3}), nullptr) << name;
  try {
    make_policy("fifo", {2, 4, 3});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Errc::Unsupported);
    EXPECT_NE(std::string(e.what()).find("'fifo'; there is " + policy_names()[0]), std::string::npos)
        << e.what();
  }
}

// What every policy must keep, on random calls: victims are in memory and may leave, and there is one
// whenever any may.
TEST(Policy, EveryPolicyGivesUpOnlyWhatMayLeave) {
  for (const std::string& name : policy_names()) {
    for (const uint32_t n_layers : {1u, 3u}) {
      const PolicyShape shape{n_layers, 8, 6};
      const auto policy = make_policy(name, shape);
      std::mt19937 random(n_layers);
      std::set<ExpertId> present, pinned;
      for (int i = 0; i < 20000; ++i) {
        const auto id = static_cast<ExpertId>(random() % (n_layers * 8));
        if (random() % 4 == 0) pinned.clear();
        if (present.contains(id)) {
          random() % 8 == 0 ? (policy->remove(id), void(present.erase(id))) : policy->use(id);
          continue;
        }
        if (present.size() == shape.n_slots) {
          const auto victim = policy->victim([&](ExpertId v) { return !pinned.contains(v); });
          const bool any = std::ranges::any_of(present, [&](ExpertId v) { return !pinned.contains(v); });
          ASSERT_EQ(victim.has_value(), any) << name;
          if (!victim) continue;
          ASSERT_TRUE(present.contains(*victim) && !pinned.contains(*victim)) << name;
          policy->remove(*victim);
          present.erase(*victim);
        }
        policy->insert(id);
        present.insert(id);
        pinned.insert(id);
      }
    }
  }
}

TEST(Policy, AnEmptyOneHasNoVictim) {
  for (const std::string& name : policy_names()) {
    const auto policy = make_policy(name, {2, 4, 3});
    EXPECT_EQ(policy->victim(kAnyone), std::nullopt) << name;
    policy->insert(1);
    EXPECT_EQ(policy->victim([](ExpertId) { return false; }), std::nullopt) << name;
    EXPECT_EQ(policy->victim(kAnyone), 1u) << name;
    EXPECT_EQ(policy->victim(kAnyone), 1u) << name << ": asking removes nothing";
    policy->remove(1);
    EXPECT_EQ(policy->victim(kAnyone), std::nullopt) << name;
  }
}

TEST(Policy, LruGivesUpTheLeastRecent) {
  const auto lru = make_policy("lru", {1, 8, 3});
  for (const ExpertId id : {3, 5, 7}) lru->insert(id);
  lru->use(3);
  EXPECT_EQ(lru->victim(kAnyone), 5u);
  EXPECT_EQ(lru->victim([](ExpertId id) { return id != 5; }), 7u);
  lru->remove(5);
  lru->insert(2);
  EXPECT_EQ(lru->victim(kAnyone), 7u);
}

// One layer; `often` is used in every step, the others once, most recently.
void use_often(EvictionPolicy& policy, ExpertId often, std::initializer_list<ExpertId> once) {
  policy.insert(often);
  for (int i = 0; i < 20; ++i) policy.use(often);
  for (const ExpertId id : once) policy.insert(id);
}

TEST(Policy, FrequencyOutweighsRecencyButFades) {
  for (const char* name : {"lfru", "forecast"}) {
    const auto policy = make_policy(name, {1, 8, 3});
    use_often(*policy, 4, {5, 6});
    EXPECT_NE(policy->victim(kAnyone), 4u) << name;
    for (int i = 0; i < 2000; ++i) {
      policy->use(5);
      policy->use(6);
    }
    EXPECT_EQ(policy->victim(kAnyone), 4u) << name;
  }
}

TEST(Policy, WhatWasRemovedIsRemembered) {
  for (const char* name : {"lfru", "forecast"}) {
    const auto policy = make_policy(name, {1, 8, 2});
    use_often(*policy, 4, {5});
    policy->remove(4);
    policy->insert(6);
    policy->remove(6);
    policy->insert(4);
    policy->use(5);
    policy->use(4);
    EXPECT_EQ(policy->victim(kAnyone), 5u) << name;
  }
}

TEST(Policy, ForecastKnowsTheRoundThroughTheLayers) {
  const auto policy = make_policy("forecast", {4, 2, 8});
  for (int step = 0; step < 50; ++step)  // all alike, except for the place in the round
    for (ExpertId layer = 0; layer < 4; ++layer)
      step == 0 ? policy->insert(2 * layer) : policy->use(2 * layer);
  policy->use(0);
  policy->use(2);  // now at layer 1: layer 0 has just been, 2 comes next
  const auto others = [](ExpertId id) { return id != 2; };
  EXPECT_EQ(policy->victim(others), 0u);
  EXPECT_EQ(policy->victim([](ExpertId id) { return id == 4 || id == 6; }), 6u);
}

double hit_rate(const CacheTrace& trace, const std::string& name, uint32_t n_slots) {
  const auto policy = make_policy(name, trace.policy_shape(n_slots));
  return replay(trace, *policy, n_slots).hit_rate();
}

TEST(Policy, TheDefaultIsNeverFarFromTheBest) {
  const double exponents[] = {0.8, 1.2}, drifts[] = {0, 0.1}, repetitions[] = {0, 0.4};
  for (const double exponent : exponents)
    for (const double drift : drifts)
      for (const double repetition : repetitions) {
        RecipeRoutes source({8, 32, 4, exponent, drift, repetition, 7});
        CacheTrace trace;
        trace.shape = source.shape();
        for (int i = 0; i < 1000; ++i) trace.add(source.next());
        for (const uint32_t n_slots : {26u, 64u, 128u}) {
          const double mine = hit_rate(trace, policy_names()[0], n_slots);
          EXPECT_GT(mine, hit_rate(trace, "lru", n_slots));
          EXPECT_GT(mine, hit_rate(trace, "lfru", n_slots) - 0.005);
        }
      }
}

}  // namespace
}  // namespace moeflux
