// What a store has done so far. Differences of two of these describe a run or a token.
#pragma once

#include <cstdint>

namespace moeflux {

struct StoreStats {
  uint64_t hits = 0, misses = 0;  // experts asked for that were in memory, and that were not (or not yet)
  uint64_t reads = 0, bytes_read = 0;
  double stall_s = 0;        // time in which a step had nothing to compute but waited for experts
  uint64_t stall_bytes = 0;  // bytes that arrived in that time
  uint64_t prefetched = 0;   // experts read before they were asked for
  uint64_t prefetch_useful = 0, prefetch_late = 0,
           prefetch_wasted = 0;  // there in time; on its way; never used
  uint64_t failed = 0;           // experts whose read failed

  uint64_t asked() const { return hits + misses; }
  double hit_rate() const { return asked() ? static_cast<double>(hits) / static_cast<double>(asked()) : 0.0; }
  double stall_bytes_per_s() const { return stall_s > 0 ? static_cast<double>(stall_bytes) / stall_s : 0.0; }

  StoreStats operator+(const StoreStats& o) const {
    return *this - (StoreStats{} - o);
  }  // counts wrap around
  StoreStats operator-(const StoreStats& o) const {
    return {hits - o.hits,
            misses - o.misses,
            reads - o.reads,
            bytes_read - o.bytes_read,
            stall_s - o.stall_s,
            stall_bytes - o.stall_bytes,
            prefetched - o.prefetched,
            prefetch_useful - o.prefetch_useful,
            prefetch_late - o.prefetch_late,
            prefetch_wasted - o.prefetch_wasted,
            failed - o.failed};
  }
};

}  // namespace moeflux
