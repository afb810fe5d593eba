#include "cuda/pointwise.h"

#include <atomic>
#include <chrono>

#include "cuda/vectors_test.h"
#include "ops/linear.h"
#include "ops/pointwise.h"

namespace moeflux::cuda {
namespace {

class CudaPointwise : public OnDevice {};

TEST_F(CudaPointwise, NormIsTheReferencesAndIsQuantised) {
  for (const size_t cols : {1, 20, 64, 100, 2048, 5000}) {
    const size_t n = 3;
    const std::vector<float> x = noise_vector(n * cols, 1), w = noise_vector(cols, 2);
    const DeviceArray<float> dx(x), dw(w);
    const TestVectors out(std::vector<float>(n * cols), cols);
    const std::vector<uint32_t> order = {2, 0, 1};
    const DeviceArray<uint32_t> rows(order);
    rms_norm(dx.get(), cols, rows.get(), dw.get(), 1e-6f, out.vectors, nullptr);
    const std::vector<float> got = out.f.values();
    const std::vector<int8_t> codes = out.q.values();
    for (size_t t = 0; t < n; ++t) {
      std::vector<float> want(cols);
      rms_norm_ref({&x[order[t] * cols], cols}, w, 1e-6f, want.data());
      for (size_t i = 0; i < cols; ++i)
        ASSERT_NEAR(got[t * cols + i], want[i], 1e-5f * (1 + std::fabs(want[i]))) << cols;
      const QuantisedVector q = quantise_vector({&got[t * cols], cols});
      for (size_t i = 0; i < q.q.size(); ++i)
        ASSERT_EQ(codes[t * q.q.size() + i], q.q[i]) << cols << " " << i;
    }
  }
}

TEST_F(CudaPointwise, WhatIsPublishedIsThereWhenTheNumberIs) {
  const DeviceArray<uint32_t> count(std::vector<uint32_t>{7});
  const PinnedBuffer told(sizeof(uint32_t), "number"), ids_to(40 * sizeof(uint32_t), "ids"),
      values_to(5000 * sizeof(float), "values"), lists_to(2 * sizeof(Shortlist), "lists");
  *told.as<uint32_t>() = 7;
  for (uint32_t round = 0; round < 20; ++round) {
    const size_t n_ids = 1 + 2 * round, n_values = round * 250;
    std::vector<uint32_t> ids(n_ids);
    for (size_t i = 0; i < n_ids; ++i) ids[i] = round * 100 + static_cast<uint32_t>(i);
    const std::vector<float> values = noise_vector(n_values, round + 1);
    const DeviceArray<uint32_t> device_ids(ids);
    const DeviceArray<float> device_values(values);
    std::vector<Shortlist> lists(round % 3);
    for (Shortlist& list : lists) {
      list.total = round + 1000;
      list.n = round % 2 ? kMostListed + round : 50 * round;
      for (uint32_t i = 0; i < kMostListed; ++i) list.keys[i] = uint64_t{round} << 40 | i;
    }
    const DeviceArray<Shortlist> device_lists(lists);
    publish({.ids = device_ids.get(),
             .n_ids = n_ids,
             .values = device_values.get(),
             .n_values = n_values,
             .lists = device_lists.get(),
             .n_lists = lists.size(),
             .ids_to = ids_to.as<uint32_t>(),
             .values_to = values_to.as<float>(),
             .lists_to = lists_to.as<Shortlist>(),
             .told = told.as<uint32_t>(),
             .count = count.get()},
            nullptr);
    const std::atomic_ref number(*told.as<uint32_t>());
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (number.load(std::memory_order_acquire) != 8 + round)
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "round " << round;
    EXPECT_EQ(std::vector(ids_to.as<uint32_t>(), ids_to.as<uint32_t>() + n_ids), ids);
    EXPECT_EQ(std::vector(values_to.as<float>(), values_to.as<float>() + n_values), values);
    for (size_t i = 0; i < lists.size(); ++i) {
      const Shortlist& got = lists_to.as<Shortlist>()[i];
      EXPECT_EQ(got.total, lists[i].total);
      EXPECT_EQ(got.n, lists[i].n);
      EXPECT_TRUE(std::equal(got.keys, got.keys + std::min(got.n, kMostListed), lists[i].keys));
    }
  }
}

TEST_F(CudaPointwise, RotaryTableHasEveryPosition) {
  const std::vector<float> inv_freq = {1.0f, 0.3f, 0.01f, 1e-6f};
  const std::vector<TokenInfo> tokens = {{nullptr, 0, 0}, {nullptr, 0, 7}, {nullptr, 0, 200'000}};
  const DeviceArray<float> freq(inv_freq), cosine(12), sine(12);
  const DeviceArray<TokenInfo> info(tokens);
  rope_table(info.get(), 3, freq.get(), 4, 1.25f, cosine.get(), sine.get(), nullptr);
  const auto c = cosine.values(), s = sine.values();
  for (size_t t = 0; t < 3; ++t)
    for (size_t i = 0; i < 4; ++i) {
      const float angle = static_cast<float>(tokens[t].position) * inv_freq[i];
      EXPECT_NEAR(c[t * 4 + i], std::cos(angle) * 1.25f, 1e-6);
      EXPECT_NEAR(s[t * 4 + i], std::sin(angle) * 1.25f, 1e-6);
    }
}

}  // namespace
}  // namespace moeflux::cuda
