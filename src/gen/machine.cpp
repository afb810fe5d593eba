#include "gen/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/memory.h"
#include "cuda/cuda_backend.h"

namespace moeflux {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kStreams[] = {1, 2, 4};

// The shortest of several rounds of work on all threads.
template <class Work>
double best_seconds(WorkerPool& pool, int rounds, Work work) {
  double best = 1e9;
  for (int r = 0; r < rounds; ++r) {
    const auto start = Clock::now();
    pool.run(pool.size(), [&](size_t i, size_t) { work(i); });
    best = std::min(best, seconds_since(start));
  }
  return best;
}

// Far more than a cache holds, but no more than half of the memory that can be had; and not a power of two:
// streams would meet in the caches.
size_t buffer_bytes(size_t threads) {
  constexpr uint64_t kLeast = 32u << 20, kMost = 536u << 20, kPage = 2u << 20;
  return std::clamp(available_memory() / 2 / threads / kPage * kPage, kLeast, kMost);
}

}  // namespace

MachineLimits measure_machine(const Ops& ops, size_t threads) {
  constexpr size_t kRounds = 100000;
  const size_t bytes = buffer_bytes(threads);
  WorkerPool pool(threads);
  MachineLimits m;
  m.threads = threads;
  const auto n = static_cast<double>(threads);
  {
    std::vector<AlignedBuffer> buffers;
    for (size_t t = 0; t < threads; ++t) buffers.emplace_back(bytes);
    pool.run(threads, [&](size_t i, size_t) { std::memset(buffers[i].data(), 1, bytes); });
    for (const size_t streams : kStreams) {
      const double s =
          best_seconds(pool, 5, [&](size_t i) { ops.read_memory(buffers[i].data(), bytes, streams); });
      m.memory_bytes_per_s = std::max(m.memory_bytes_per_s, n * static_cast<double>(bytes) / s);
    }
  }
  const double ops_done = n * static_cast<double>(kRounds * kPeakOpsPerRound * 2);
  m.float_flops = ops_done / best_seconds(pool, 5, [&](size_t) { ops.peak_float(kRounds); });
  m.int8_ops = 4 * ops_done / best_seconds(pool, 5, [&](size_t) { ops.peak_int8(kRounds); });
  constexpr int kRegions = 1000;
  for (int i = 0; i < kRegions; ++i) pool.run(threads, [](size_t, size_t) {});
  const auto start = Clock::now();
  for (int i = 0; i < kRegions; ++i) pool.run(threads, [](size_t, size_t) {});
  m.region_us = seconds_since(start) * 1e6 / kRegions;
  return m;
}

double MemoryReader::bytes_per_s() {
  double best = 0;
  for (const size_t streams : kStreams) best = std::max(best, read(streams));
  return best;
}

double MemoryReader::read(size_t streams) {
  constexpr size_t kEach = 67u << 20, kReadings = 3;  // not a power of two: streams would meet in the caches
  const size_t threads = pool_.size(), each = std::min(kEach, memory_.size() / threads / 64 * 64);
  const auto read_part = [&] {
    if (at_ + threads * each > memory_.size()) at_ = 0;
    const std::byte* part = memory_.data() + std::exchange(at_, at_ + threads * each);
    pool_.run(threads, [&](size_t i, size_t) { ops_.read_memory(part + i * each, each, streams); });
  };
  read_part();  // the threads are awake from here on
  const auto start = Clock::now();
  for (size_t r = 0; r < kReadings; ++r) read_part();
  return static_cast<double>(kReadings * threads * each) / seconds_since(start);
}

double device_memory_bytes_per_s() { return measure_cuda_memory(); }

}  // namespace moeflux
