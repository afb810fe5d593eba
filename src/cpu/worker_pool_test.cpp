#include "cpu/worker_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

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

}  // namespace
}  // namespace moeflux
