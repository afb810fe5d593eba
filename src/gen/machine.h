// What this machine can do at most, measured: the limits against which kernels and models are judged.
#pragma once

#include <cstddef>

#include <span>

#include "cpu/worker_pool.h"
#include "ops/ops.h"

namespace moeflux {

struct MachineLimits {
  size_t threads = 1;
  double memory_bytes_per_s = 0;  // reading, all threads, large pages
  double float_flops = 0;         // multiply and add counted apart, all threads
  double int8_ops = 0;
  double region_us = 0;  // starting and ending a parallel region
};

// Takes about two seconds and 536 MiB per thread, less where half of the available memory is less.
MachineLimits measure_machine(const Ops& ops, size_t threads);
double device_memory_bytes_per_s();  // of the GPU; throws Error{Device | Unsupported} where there is none

// How fast all threads of a pool read memory: each time another part of it, so that what caches hold of the
// parts before is of no use. The memory should be much more than the caches hold.
class MemoryReader {
 public:
  MemoryReader(const Ops& ops, WorkerPool& pool, std::span<const std::byte> memory)
      : ops_(ops), pool_(pool), memory_(memory) {}
  double bytes_per_s();  // the fastest of several ways to read, each the mean of several readings

 private:
  double read(size_t streams);

  const Ops& ops_;
  WorkerPool& pool_;
  const std::span<const std::byte> memory_;
  size_t at_ = 0;
};

}  // namespace moeflux
