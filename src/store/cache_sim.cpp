#include "store/cache_sim.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <span>
#include <utility>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// The groups of a trace, one after the other.
template <class Visit>  // void(std::span<const ExpertId> group, size_t its number)
void for_each_group(const CacheTrace& trace, const Visit& visit) {
  size_t begin = 0;
  for (size_t g = 0; g < trace.group_ends.size(); begin = trace.group_ends[g++])
    visit(std::span(trace.asked).subspan(begin, trace.group_ends[g] - begin), g);
}

// For every expert asked for, the number of the next group that asks for it again.
std::vector<uint64_t> next_uses(const CacheTrace& trace) {
  std::vector<uint64_t> upcoming(trace.shape.n_all_experts(), kNever), next(trace.asked.size());
  size_t end = trace.asked.size();
  for (size_t g = trace.group_ends.size(); g-- > 0;) {
    const size_t begin = g > 0 ? trace.group_ends[g - 1] : 0;
    for (size_t i = begin; i < end; ++i) next[i] = std::exchange(upcoming[trace.asked[i]], g);
    end = begin;
  }
  return next;
}

}  // namespace

double CacheCounts::hit_rate() const {
  return hits + misses ? static_cast<double>(hits) / static_cast<double>(hits + misses) : 0.0;
}

void CacheTrace::add(const RoutingStep& step) {
  const bool sweep = step.n_tokens > kMostDecodeTokens;
  (sweep ? n_sweeps : n_steps) += 1;
  (sweep ? n_sweep_tokens : n_tokens) += step.n_tokens;
  for (size_t layer = 0; layer < step.ids.size(); ++layer) {
    std::vector<uint32_t> group = step.ids[layer];
    std::ranges::sort(group);
    group.erase(std::unique(group.begin(), group.end()), group.end());
    if (sweep) {
      n_sweep_asked += group.size();
      continue;
    }
    for (const uint32_t id : group) asked.push_back(static_cast<ExpertId>(layer * shape.n_experts + id));
    group_ends.push_back(asked.size());
    largest_group = std::max(largest_group, static_cast<uint32_t>(group.size()));
  }
}

PolicyShape CacheTrace::policy_shape(uint32_t n_slots) const {
  return {static_cast<uint32_t>(shape.layers.size()), shape.n_experts, n_slots};
}

CacheTrace read_cache_trace(RoutingLogReader& log) {
  CacheTrace trace;
  trace.shape = log.shape();
  RoutingStep step;
  while (log.next(step)) trace.add(step);
  return trace;
}

double repeated_share(const CacheTrace& trace) {
  const size_t n_layers = trace.shape.layers.size();
  std::vector<size_t> step_of(trace.shape.n_all_experts());  // the last one that asked for it, counted from 1
  uint64_t repeated = 0, asked = 0;
  for_each_group(trace, [&](std::span<const ExpertId> group, size_t number) {
    const size_t step = number / n_layers + 1;
    for (const ExpertId id : group) repeated += std::exchange(step_of[id], step) + 1 == step && step > 1;
    if (step > 1) asked += group.size();
  });
  return asked ? static_cast<double>(repeated) / static_cast<double>(asked) : 0.0;
}

CacheCounts replay(const CacheTrace& trace, EvictionPolicy& policy, uint32_t n_slots) {
  check(n_slots >= trace.largest_group, "slots for the experts of one layer");
  std::vector<bool> present(trace.shape.n_all_experts());
  std::vector<size_t> group_of(present.size(), SIZE_MAX);  // the last group that asked for it
  size_t n_present = 0;
  CacheCounts counts;
  for_each_group(trace, [&](std::span<const ExpertId> group, size_t number) {
    for (const ExpertId id : group) group_of[id] = number;
    for (const ExpertId id : group) {  // what is there is computed while the rest is read
      if (present[id]) policy.use(id), ++counts.hits;
    }
    for (const ExpertId id : group) {
      if (present[id]) continue;
      ++counts.misses;
      if (n_present == n_slots) {
        const auto victim = policy.victim([&](ExpertId other) { return group_of[other] != number; });
        check(victim && present[*victim] && group_of[*victim] != number, "a victim that may leave");
        policy.remove(*victim);
        present[*victim] = false;
        --n_present;
      }
      policy.insert(id);
      present[id] = true;
      ++n_present;
    }
  });
  return counts;
}

CacheCounts replay_optimum(const CacheTrace& trace, uint32_t n_slots) {
  check(n_slots >= trace.largest_group, "slots for the experts of one layer");
  const std::vector<uint64_t> next = next_uses(trace);
  std::vector<uint64_t> next_of(trace.shape.n_all_experts());  // of those that are present
  std::vector<bool> present(next_of.size());
  std::priority_queue<std::pair<uint64_t, ExpertId>> farthest;  // old entries stay in until they come up
  size_t n_present = 0;
  CacheCounts counts;
  // Present experts of the group itself have the nearest next use of all, so that none of them ever leaves
  // here: their uses after this one are only entered once the group is complete.
  const auto evict = [&] {
    for (;; farthest.pop()) {
      const auto& [when, id] = farthest.top();
      if (present[id] && next_of[id] == when) break;
    }
    present[farthest.top().second] = false;
    farthest.pop();
    --n_present;
  };
  size_t at = 0;
  for_each_group(trace, [&](std::span<const ExpertId> group, size_t) {
    size_t n_missing = 0;
    for (const ExpertId id : group) n_missing += !present[id];
    counts.hits += group.size() - n_missing;
    counts.misses += n_missing;
    while (n_present + n_missing > n_slots) evict();
    n_present += n_missing;
    for (const ExpertId id : group) {
      present[id] = true;
      next_of[id] = next[at++];
      farthest.emplace(next_of[id], id);
    }
  });
  return counts;
}

}  // namespace moeflux
