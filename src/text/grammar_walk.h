// Steps through a grammar: sets of configurations and the frames below them. What a state, a mask and the
// states behind a mask have in common. Not thread-safe; made for one run of steps.
#pragma once

#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar.h"

namespace moeflux {

struct GrammarStep {
  std::vector<GrammarConfiguration> configurations;  // sorted, Bytes nodes only
  bool bottom = false;                               // the bottom frame was popped: its rule can end here
};

class GrammarWalk {
 public:
  // Configurations that would need more than max_depth frames are dropped. Nothing may be done before work,
  // counted in configurations, is allowed; what needs more throws Error{Unsupported}.
  GrammarWalk(const Grammar& grammar, const std::vector<GrammarFrame>& frames, uint32_t max_depth);

  const std::vector<GrammarFrame>& frames() const { return frames_; }
  GrammarStep start();                      // all that the root reaches without a byte
  GrammarStep after_frame(uint32_t frame);  // the same for the callers of a frame
  GrammarStep step(std::span<const GrammarConfiguration> from, uint8_t byte);
  void allow_work(size_t work) { work_left_ = work; }

 private:
  void begin();
  void visit(GrammarConfiguration configuration);
  void expand(GrammarConfiguration configuration);
  void call(const GrammarNode& node, uint32_t frame);
  void pop(uint32_t frame);
  void spend(size_t work);
  uint32_t intern(std::vector<GrammarLink> links);
  GrammarStep finish();

  const Grammar& grammar_;
  uint32_t max_depth_;
  size_t work_left_ = 0;
  std::vector<GrammarFrame> frames_;
  std::unordered_multimap<uint64_t, uint32_t> frame_of_;  // by the hash of the links
  std::vector<std::vector<GrammarLink>> callers_;         // of each callee, in this closure
  std::set<uint32_t> called_;                             // callees that are still to be entered
  // Configurations seen in this closure: slots of an open table that count only with the current stamp.
  struct Slot {
    uint64_t key = 0;
    uint32_t stamp = 0;
  };
  std::vector<Slot> seen_;
  size_t n_seen_ = 0;
  uint32_t stamp_ = 0;
  bool insert_seen(uint64_t key);
  void grow_seen();
  std::vector<GrammarConfiguration> pending_;
  GrammarStep result_;
};

}  // namespace moeflux
