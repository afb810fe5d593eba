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

// Takes about two seconds and 512 MiB per thread, less where half of the available memory is less.
MachineLimits measure_machine(const Ops& ops, size_t threads);
double device_memory_bytes_per_s();  // of the GPU; throws Error{Device | Unsupported} where there is none
// How fast all threads of the pool read this memory, which should be much more than the caches hold: the mean
// of several readings.
double read_bytes_per_s(const Ops& ops, WorkerPool& pool, std::span<const std::byte> memory);

}  // namespace moeflux
