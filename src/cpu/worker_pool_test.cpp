#include "cpu/worker_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>

namespace moeflux {
namespace {

TEST(WorkerPoolThreads, EveryItemOnceInEveryRegion) {
  for (const size_t threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (size_t region = 0; region < 2000; ++region) {
      const size_t n = region % 23;
      std::vector<int> seen(n);
      std::vector<size_t> worker(n, SIZE_MAX);
      pool.run(n, [&](size_t i, size_t w) { ++seen[i], worker[i] = w; });
      for (size_t i = 0; i < n; ++i) ASSERT_TRUE(seen[i] == 1 && worker[i] < threads);
    }
  }
}

TEST(WorkerPoolThreads, WorksAfterSleepingAndEndsWhileAsleep) {
  WorkerPool pool(3);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::vector<size_t> out(100);
    pool.run(100, [&](size_t i, size_t) { out[i] = i; });
    EXPECT_EQ(std::accumulate(out.begin(), out.end(), size_t{0}), 4950u);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(WorkerPoolThreads, WhatComesFirstIsCalledOnceByTheCaller) {
  for (const size_t threads : {1, 2, 5})
    for (const size_t n : {0, 1, 50}) {
      WorkerPool pool(threads);
      const auto caller = std::this_thread::get_id();
      int calls = 0;
      std::vector<int> seen(n);
      pool.run(
          n, [&](size_t i, size_t) { ++seen[i]; },
          [&] {
            ++calls;
            EXPECT_EQ(std::this_thread::get_id(), caller);
          });
      EXPECT_EQ(calls, 1);
      EXPECT_EQ(std::ranges::count(seen, 1), static_cast<ptrdiff_t>(n));
    }
}

TEST(WorkerPoolThreads, WhatComesFirstMayThrowAndNothingIsLost) {
  WorkerPool pool(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<int> seen(40);
    EXPECT_THROW(pool.run(
                     40, [&](size_t i, size_t) { ++seen[i]; }, [] { throw std::runtime_error("first"); }),
                 std::runtime_error);
    EXPECT_EQ(std::ranges::count(seen, 1), 40);
  }
}

}  // namespace
}  // namespace moeflux
