#include "model/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "support/checkpoint_builder.h"

namespace moeflux {
namespace {

struct Subject {
  Subject()
      : package(test::golden_package("qwen3_next")),
        model(parse_model_config(package.config(), "config.json")) {}
  MemoryPlan plan(const PlanRequest& request) const { return make_plan(model, package.manifest(), request); }
  Package package;
  ModelConfig model;
};

TEST(Plan, PartsAddUpAndBudgetsAreSlotsOnly) {
  const Subject s;
  const uint64_t experts = s.package.manifest().expert_bytes();
  const MemoryPlan p = s.plan(
      {.ram = experts / 4, .vram = experts / 2, .ctx = 100, .max_memory = {}, .available = 1ull << 40});
  EXPECT_EQ(p.ram_slot_bytes, experts / 4);
  EXPECT_EQ(p.vram_slot_bytes, experts / 2);
  EXPECT_EQ(p.ssd_only_bytes, experts - experts / 4 - experts / 2);
  EXPECT_EQ(p.host_bytes, p.resident_bytes + p.kv_bytes + p.overhead_bytes + p.ram_slot_bytes);
  EXPECT_EQ(p.token_missed_bytes, p.token_expert_bytes / 4);
  // Two attention layers of one KV head of 64, bf16, in blocks of 64 positions; six layers of recurrent state
  // in float.
  EXPECT_EQ(p.kv_bytes, 2 * 128 * 2 * 64 * 2 + 6 * delta_state_floats(s.model) * 4);
}

TEST(Plan, AMultiTokenPredictionLayerHasACacheOfItsOwn) {
  const Package package(test::mtp_package("qwen3_next"));
  const Subject without;
  const PlanRequest request{.ram = {}, .vram = {}, .ctx = 100, .max_memory = {}, .available = 1ull << 40};
  const MemoryPlan p = make_plan(without.model, package.manifest(), request), q = without.plan(request);
  EXPECT_EQ(p.kv_bytes - q.kv_bytes, 128 * 2 * 64 * 2u);
  EXPECT_GT(p.overhead_bytes, q.overhead_bytes);
  EXPECT_EQ(p.token_expert_bytes, q.token_expert_bytes);  // without guesses it takes no part
  EXPECT_EQ(p.params_total, q.params_total);
  // A GPU keeps states to go back to when guesses were wrong.
  PlanRequest on_gpu = request;
  on_gpu.device_free = 1ull << 40;
  const MemoryPlan g = make_plan(without.model, package.manifest(), on_gpu);
  EXPECT_EQ(g.kv_bytes - p.kv_bytes, kDeviceStatesBack * 6 * delta_state_floats(without.model) * 4);
}

TEST(Plan, AGpuHoldsTheStepsPositionsOfWindows) {
  const Package package(test::golden_package("gpt_oss"));
  const ModelConfig model = parse_model_config(package.config(), "config.json");
  const auto on_top = [&](uint64_t sequences) {  // of the caches themselves
    const PlanRequest r{.ram = {},
                        .vram = {},
                        .device_free = 1ull << 40,
                        .ctx = 1000,
                        .sequences = sequences,
                        .max_memory = {},
                        .available = 1ull << 40,
                        .chunk = 256};
    const MemoryPlan p = make_plan(model, package.manifest(), r);
    EXPECT_EQ(p.text_kv_bytes, sequences * sequence_bytes(model, p.ctx, r.kv));
    return p.kv_bytes - p.text_kv_bytes;
  };
  const auto windows = static_cast<uint64_t>(
      std::ranges::count_if(model.layers, [](const LayerConfig& l) { return l.window > 0; }));
  ASSERT_GT(windows, 0u);
  const uint64_t position = windows * kv_width(model, model.layers[0]) * 2;
  EXPECT_EQ(on_top(1), 256 * position);
  EXPECT_EQ(on_top(3), (256 + 2 * 64) * position);
}

TEST(Plan, ATokenReadsRecurrentState) {
  const Package package(test::golden_package("qwen3_next"));
  const ModelConfig model = parse_model_config(package.config(), "config.json");
  const MemoryPlan p =
      make_plan(model, package.manifest(),
                {.ram = {}, .vram = {}, .sequences = 3, .max_memory = {}, .available = 1ull << 40});
  const auto layers =
      static_cast<uint64_t>(std::ranges::count(model.layers, Mixer::DeltaNet, &LayerConfig::mixer));
  ASSERT_GT(layers, 0u);
  EXPECT_EQ(p.text_state_bytes, 3 * layers * delta_state_floats(model) * 4);
  EXPECT_LT(p.text_state_bytes, p.text_kv_bytes);  // there is attention as well
  const DeltaConfig& d = model.delta;
  EXPECT_GT(p.token_state_bytes, layers * d.n_value_heads * d.key_dim * d.value_dim * 4);
  EXPECT_LT(p.token_state_bytes, p.text_state_bytes / 3);
}

TEST(Plan, WhatDoesNotFitIsRefusedOrSaid) {
  const Subject s;
  EXPECT_THROW(s.plan({.ram = {}, .vram = {}, .max_memory = {}, .available = 1 << 20}), Error);
  EXPECT_THROW(s.plan({.ram = 1, .vram = {}, .max_memory = {}, .available = 1ull << 40}), Error);
  EXPECT_THROW(s.plan({.ram = {}, .vram = {}, .ctx = 1 << 20, .max_memory = {}, .available = 1ull << 40}),
               Error);
  const MemoryPlan p =
      s.plan({.ram = {}, .vram = {}, .max_memory = {}, .available = 1 << 20, .refuse = false});
  EXPECT_FALSE(p.fits);
  EXPECT_EQ(p.ram_slot_bytes, ExpertStore::least_budget(s.package.manifest()));
}

TEST(Plan, LogitsTakeTheRoomOfTheirRows) {
  const Subject s;
  const auto overhead = [&](uint64_t rows) {
    return s
        .plan({.ram = {},
               .vram = {},
               .ctx = 100,
               .max_memory = {},
               .available = 1ull << 40,
               .logit_rows = rows})
        .overhead_bytes;
  };
  // A row of logits, and the normed vector that it comes from: floats, int8 and scales.
  const uint64_t d = s.model.d_model;
  EXPECT_EQ(overhead(8) - overhead(1), 7 * (s.model.n_vocab * sizeof(float) + 4 * d + d + d / 64 * 32));
  EXPECT_EQ(overhead(512), overhead(100));  // no step has more tokens than the context
}

TEST(Plan, ACapShrinksTheSlots) {
  const Subject s;
  const MemoryPlan all = s.plan({.ram = {}, .vram = {}, .max_memory = {}, .available = 1ull << 40});
  EXPECT_EQ(all.ssd_only_bytes, 0u);
  const MemoryPlan capped =
      s.plan({.ram = {}, .vram = {}, .max_memory = all.host_bytes - 100000, .available = 1ull << 40});
  EXPECT_EQ(capped.ram_slot_bytes, all.ram_slot_bytes - 100000);
}

}  // namespace
}  // namespace moeflux
