#include "cpu/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include "base/error.h"

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

// In a process of its own, which has no room for the stacks of so many: an error, and no waiting for those
// that have begun.
TEST(WorkerPool, AThreadThatTheSystemRefusesIsAnError) {
#ifdef MOEFLUX_SANITIZED
  GTEST_SKIP() << "a sanitizer's own memory leaves no room to limit";
#endif
  constexpr int kNoLimit = 7;
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + (200u << 20);
    const rlimit limit{most, most};
    setrlimit(RLIMIT_AS, &limit);
    try {
      const WorkerPool pool(1000);
    } catch (const Error& e) {
      _exit(e.code == Errc::OutOfMemory ? 0 : 1);
    }
    _exit(kNoLimit);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kNoLimit) GTEST_SKIP() << "memory cannot be limited here (an emulator)";
  EXPECT_EQ(WEXITSTATUS(status), 0);
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

// Hints change while workers follow them. Only sanitizers can see a read beyond a hint's memory, or a race.
TEST(WorkerPoolThreads, HintsAreFollowedWithinTheirMemory) {
  std::vector<std::unique_ptr<std::byte[]>> memory;
  const std::vector<size_t> sizes{1, 64, 1000, 1025, 70000, 600 * 1024};
  for (const size_t n : sizes) memory.push_back(std::make_unique<std::byte[]>(n));
  WorkerPool pool(3);
  for (size_t round = 0; round < 3000; ++round) {
    for (size_t worker = 0; worker < pool.size(); ++worker) {
      const size_t i = (round + worker) % sizes.size();
      pool.fetch_ahead(worker, {memory[i].get(), sizes[i]});
    }
    std::atomic<size_t> sum = 0;
    if (round % 7 == 0) pool.run(5, [&](size_t i, size_t) { sum += i; });
    EXPECT_EQ(sum, round % 7 == 0 ? 10u : 0u);
  }
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
