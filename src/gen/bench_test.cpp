#include "gen/bench.h"

#include <gtest/gtest.h>

#include "support/support.h"

namespace moeflux {
namespace {

const fs::path& package() { return test::golden_package("qwen3_moe"); }

uint64_t expert_bytes() { return Package(package()).manifest().expert_bytes(); }

BenchRequest small_request() {
  BenchRequest r;
  r.engine.ram = expert_bytes() / 4;
  r.engine.chunk = 16;
  r.routing = parse_routing("uniform");
  r.prompt = 24;
  r.generate = 8;
  r.repeat = 2;
  return r;
}

TEST(Bench, TheLimitIsReadingFromTheDriveAndThenFromMemory) {
  EXPECT_DOUBLE_EQ(decode_limit(2e9, 8e9, 4e9, 16e9), 1.0);
  EXPECT_DOUBLE_EQ(decode_limit(0, 8e9, 0, 16e9), 2.0);  // nothing missed: the drive does not matter
  Measured m;
  m.tokens = 4;
  m.store = {.reads = 10, .bytes_read = 1000, .prefetched = 5, .prefetch_wasted = 3};
  EXPECT_DOUBLE_EQ(m.per_token(m.missed_bytes()), 175);  // experts that nobody asked for need not be read
  m.store.reads = 0;
  EXPECT_DOUBLE_EQ(m.missed_bytes(), 1000);
}

TEST(Bench, WarmFillsTheSlotsFirstAndCountsWhatTokensTouch) {
  const BenchResult r = bench_package(package(), small_request());
  EXPECT_FALSE(r.in_memory);
  EXPECT_GE(r.warmup_tokens, 16u);
  EXPECT_TRUE(r.slots_filled);
  ASSERT_TRUE(r.prefill);
  EXPECT_EQ(r.prefill->length, 24u);
  EXPECT_EQ(r.prefill->tokens, 48u);
  EXPECT_GT(r.prefill->rate.median, 0);
  EXPECT_LE(r.prefill->rate.least, r.prefill->rate.most);
  // Each expert once per step: at most all of them in each of the two steps of a prefill.
  EXPECT_LE(r.prefill->touched_expert_bytes, 2 * 2 * r.plan.expert_bytes);
  EXPECT_GT(r.prefill->touched_expert_bytes, r.plan.expert_bytes / 2);
  ASSERT_EQ(r.decode.size(), 1u);
  const Measured& d = r.decode[0];
  EXPECT_EQ(d.tokens, 8u);
  EXPECT_EQ(d.touched_expert_bytes, 8 * r.plan.token_expert_bytes);
  EXPECT_EQ(d.store.asked(), 8 * r.plan.token_expert_bytes / (r.plan.expert_bytes / r.plan.n_experts));
  EXPECT_GT(d.store.bytes_read, 0u);
  EXPECT_TRUE(r.read_experts());
  EXPECT_DOUBLE_EQ(r.token_bytes(d),
                   static_cast<double>(r.plan.token_resident_bytes + r.plan.token_expert_bytes));
}

TEST(Bench, AllExpertsAreLoadedFirstWhereTheyFit) {
  BenchRequest request = small_request();
  request.engine.ram.reset();
  request.depths = {0, 20};
  const BenchResult r = bench_package(package(), request);
  EXPECT_TRUE(r.in_memory);
  EXPECT_FALSE(r.read_experts());
  EXPECT_EQ(r.warmup_tokens, 0u);
  ASSERT_EQ(r.decode.size(), 2u);
  EXPECT_EQ(r.decode[1].depth, 20u);
  EXPECT_EQ(r.decode[1].store.hit_rate(), 1.0);
  EXPECT_GT(r.token_bytes(r.decode[1]), r.token_bytes(r.decode[0]));  // keys and values of the text before
}

TEST(Bench, RecurrentStateCountsTheSameAfterAnyText) {
  BenchResult r;
  r.plan.ctx = 100;
  r.plan.token_resident_bytes = 1000;
  r.plan.token_state_bytes = 70;
  r.plan.text_kv_bytes = 2 * (800 + 90);  // of two texts
  r.plan.text_state_bytes = 2 * 90;
  Measured m;
  m.tokens = 10;
  m.sequences = 2;
  m.touched_expert_bytes = 50;
  EXPECT_DOUBLE_EQ(r.token_bytes(m), 500 + 5 + 70);
  m.depth = 48;
  m.length = 4;
  EXPECT_DOUBLE_EQ(r.token_bytes(m), 500 + 5 + 70 + 800 * 0.5);
}

TEST(Bench, ColdStartsWithEmptySlotsEachTime) {
  BenchRequest request = small_request();
  request.state = CacheState::Cold;
  request.engine.ram = expert_bytes();
  request.generate = 1;
  const BenchResult r = bench_package(package(), request);
  EXPECT_FALSE(r.in_memory);
  EXPECT_EQ(r.warmup_tokens, 0u);
  EXPECT_EQ(r.decode.at(0).tokens, 2u);
  EXPECT_GE(r.decode[0].store.bytes_read, 2 * r.plan.token_expert_bytes);
  EXPECT_GT(r.prefill->store.misses, 0u);
}

TEST(Bench, RotatingTextsFollowEachOther) {
  BenchRequest request = small_request();
  request.state = CacheState::Rotating;
  request.routing = parse_routing("zipf:1");
  request.repeat = 3;
  const BenchResult r = bench_package(package(), request);
  EXPECT_EQ(r.prefill->tokens, 3 * 24u);
  EXPECT_EQ(r.decode.at(0).tokens, 3 * 8u);
  EXPECT_EQ(r.decode[0].depth, 24u);
  EXPECT_GT(r.decode[0].store.bytes_read, 0u);
}

TEST(Bench, MoreSlotsHitMore) {
  BenchRequest request = small_request();
  request.generate = 40;
  const auto hits = [&](uint64_t ram) {
    request.engine.ram = ram;
    return bench_package(package(), request).decode.at(0).store.hits;
  };
  EXPECT_GT(hits(expert_bytes() * 3 / 4), hits(expert_bytes() / 4));
}

TEST(Bench, TheDriveIsMeasured) { EXPECT_GT(drive_bytes_per_s(Package(package()), {}), 0); }

}  // namespace
}  // namespace moeflux
