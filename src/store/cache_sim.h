// What an eviction policy would have done with recorded routes: hits and misses for any number of slots,
// beside the best that any policy could have done. No bytes are read; time is not looked at.
//
// Decoding goes through the cache. Steps of many tokens are prefill sweeps: they want almost every expert of
// a layer once, and a store streams those past the cache of decoding instead of letting them flush it. They
// are counted apart.
#pragma once

#include <cstdint>
#include <vector>

#include "store/policy.h"
#include "store/routing_log.h"

namespace moeflux {

inline constexpr uint32_t kMostDecodeTokens = 32;  // of a step; one with more is a sweep

// What a log asks of the cache, layer by layer. The experts of one layer of one step form a group: all of
// them are in slots at the same time, and each counts once, however many of the step's tokens chose it.
struct CacheTrace {
  RoutingShape shape;
  std::vector<ExpertId> asked;     // of all groups
  std::vector<size_t> group_ends;  // in `asked`
  uint32_t largest_group = 0;      // the least number of slots
  uint64_t n_steps = 0, n_tokens = 0;
  uint64_t n_sweeps = 0, n_sweep_tokens = 0, n_sweep_asked = 0;

  void add(const RoutingStep& step);
  PolicyShape policy_shape(uint32_t n_slots) const;
};

CacheTrace read_cache_trace(RoutingLogReader& log);
// Of the experts asked for, how many their layer had asked for in the step of decoding before, 0..1: what is
// right when one guesses that each layer chooses as it did for the previous token.
double repeated_share(const CacheTrace& trace);

struct CacheCounts {
  uint64_t hits = 0, misses = 0;
  double hit_rate() const;  // 0 where nothing was asked for
  bool operator==(const CacheCounts&) const = default;
};

// Both start with empty slots and want at least `largest_group` of them.
CacheCounts replay(const CacheTrace& trace, EvictionPolicy& policy, uint32_t n_slots);
// The fewest misses that are possible: the expert that is used farthest in the future leaves.
CacheCounts replay_optimum(const CacheTrace& trace, uint32_t n_slots);

}  // namespace moeflux
