#include "text/grammar.h"

#include <algorithm>

#include "base/error.h"
#include "text/grammar_walk.h"

namespace moeflux {
namespace {

constexpr size_t kMaxAdvanceWork = 4'000'000;

// Keeps the frames that these configurations use, so that a state stays as small as its stacks.
std::vector<GrammarFrame> used_frames(const std::vector<GrammarFrame>& frames,
                                      std::vector<GrammarConfiguration>& configurations) {
  std::vector<bool> used(frames.size(), false);
  used[0] = true;
  for (const GrammarConfiguration& configuration : configurations) used[configuration.frame] = true;
  for (size_t f = frames.size(); f-- > 0;)  // parents have lower numbers
    if (used[f])
      for (const GrammarLink& link : frames[f].links) used[link.parent] = true;
  std::vector<uint32_t> new_index(frames.size(), 0);
  std::vector<GrammarFrame> kept;
  for (size_t f = 0; f < frames.size(); ++f) {
    if (!used[f]) continue;
    new_index[f] = static_cast<uint32_t>(kept.size());
    kept.push_back(frames[f]);
    for (GrammarLink& link : kept.back().links) link.parent = new_index[link.parent];
  }
  for (GrammarConfiguration& configuration : configurations)
    configuration.frame = new_index[configuration.frame];
  return kept;
}

}  // namespace

GrammarState Grammar::start() const {
  GrammarState state;
  GrammarWalk walk(*this, state.frames_, kMaxGrammarDepth);
  walk.allow_work(kMaxAdvanceWork);
  GrammarStep step = walk.start();
  state.frames_ = used_frames(walk.frames(), step.configurations);
  state.configurations_ = std::move(step.configurations);
  state.accepting_ = step.bottom;
  return state;
}

bool Grammar::advance(GrammarState& state, std::string_view bytes) const {
  if (bytes.empty()) return true;
  GrammarWalk walk(*this, state.frames_, kMaxGrammarDepth);
  walk.allow_work(kMaxAdvanceWork);
  GrammarStep step{state.configurations_, state.accepting_};
  for (const char byte : bytes) {
    step = walk.step(step.configurations, static_cast<uint8_t>(byte));
    if (step.configurations.empty() && !step.bottom) return false;
  }
  state.frames_ = used_frames(walk.frames(), step.configurations);
  state.configurations_ = std::move(step.configurations);
  state.accepting_ = step.bottom;
  return true;
}

bool Grammar::matches(std::string_view text) const {
  GrammarState state = start();
  return advance(state, text) && state.accepting();
}

NodeId Grammar::stand_in(NodeId node, size_t bytes) const {
  // Each alias leads to an earlier copy of one more repetition, so that the search ends.
  for (bool found = true; found;) {
    found = false;
    for (uint32_t i = node < first_alias_.size() ? first_alias_[node] : kNoNode; i != kNoNode && !found;
         i = aliases_[i].next) {
      if (aliases_[i].bytes < bytes) continue;
      node = aliases_[i].target;
      found = true;
      break;
    }
  }
  return node;
}

Grammar Grammar::parse(std::string_view text) { return Grammar(parse_grammar_rules(text)); }

}  // namespace moeflux
