// Which expert leaves when a slot is needed. A policy sees the order in which experts are used and nothing
// else: no locks, no I/O, no clock. It is judged on recorded routes (store/cache_sim.h), and changes time,
// never results.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moeflux {

// An expert's number among those that share a class of slots: layer by layer, n_experts each.
using ExpertId = uint32_t;

struct PolicyShape {
  uint32_t n_layers = 0, n_experts = 0;  // experts of each layer
  uint32_t n_slots = 0;
};

// Uses come in the order in which a step goes through the layers, each expert at most once per layer and
// step: from that a policy tells where a step begins. Prefill sweeps, which touch everything once, should not
// be told to it.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void insert(ExpertId id) = 0;  // is in memory from now on, and used
  virtual void use(ExpertId id) = 0;     // is in memory, and used again
  virtual void remove(ExpertId id) = 0;  // is no longer in memory; what is known of it may be kept
  // Which one to give up among those that may leave; nothing if none may. Does not remove it.
  virtual std::optional<ExpertId> victim(const std::function<bool(ExpertId)>& may_leave) = 0;
};

std::vector<std::string> policy_names();  // the default first
// Throws Error{Unsupported} for a name that is not among them.
std::unique_ptr<EvictionPolicy> make_policy(std::string_view name, const PolicyShape& shape);

}  // namespace moeflux
