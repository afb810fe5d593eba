#include "text/grammar_walk.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace moeflux {
namespace {

uint64_t pack(uint32_t high, uint32_t low) { return (uint64_t{high} << 32) | low; }

size_t slot_of(uint64_t key, size_t n_slots) {
  return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 32) & (n_slots - 1);
}

uint64_t hash_of(const std::vector<GrammarLink>& links) {
  uint64_t hash = links.size();
  for (const GrammarLink& link : links)
    hash = (hash ^ pack(link.return_to, link.parent)) * 0xD6E8FEB86659FD93u + (hash >> 29);
  return hash;
}

}  // namespace

GrammarWalk::GrammarWalk(const Grammar& grammar, const std::vector<GrammarFrame>& frames, uint32_t max_depth)
    : grammar_(grammar),
      max_depth_(max_depth),
      frames_(frames),
      callers_(grammar.callees().size()),
      seen_(64) {
  for (uint32_t i = 0; i < frames_.size(); ++i) frame_of_.emplace(hash_of(frames_[i].links), i);
}

bool GrammarWalk::insert_seen(uint64_t key) {
  if (2 * n_seen_ >= seen_.size()) grow_seen();
  size_t at = slot_of(key, seen_.size());
  while (seen_[at].stamp == stamp_) {
    if (seen_[at].key == key) return false;
    at = (at + 1) & (seen_.size() - 1);
  }
  seen_[at] = {key, stamp_};
  ++n_seen_;
  return true;
}

void GrammarWalk::grow_seen() {
  std::vector<Slot> old(seen_.size() * 2);
  old.swap(seen_);
  for (const Slot& slot : old) {
    if (slot.stamp != stamp_) continue;
    size_t at = slot_of(slot.key, seen_.size());
    while (seen_[at].stamp == stamp_) at = (at + 1) & (seen_.size() - 1);
    seen_[at] = slot;
  }
}

uint32_t GrammarWalk::intern(std::vector<GrammarLink> links) {
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  const uint64_t hash = hash_of(links);
  for (auto [it, end] = frame_of_.equal_range(hash); it != end; ++it)
    if (frames_[it->second].links == links) return it->second;
  uint32_t depth = 0;
  for (const GrammarLink& link : links)
    if (link.return_to != kNoNode) depth = std::max(depth, frames_[link.parent].depth + 1);
  frames_.push_back({std::move(links), depth});
  const auto id = static_cast<uint32_t>(frames_.size() - 1);
  frame_of_.emplace(hash, id);
  return id;
}

void GrammarWalk::spend(size_t work) {
  if (work_left_ < work)
    fail(Errc::Unsupported, "the grammar is too ambiguous: following all its readings takes too long");
  work_left_ -= work;
}

void GrammarWalk::visit(GrammarConfiguration configuration) {
  const GrammarNode& node = grammar_.nodes()[configuration.node];
  if (frames_[configuration.frame].depth + uint64_t{node.height} > max_depth_) return;
  spend(1);
  if (!insert_seen(pack(configuration.node, configuration.frame))) return;
  if (node.kind != GrammarNode::Kind::Bytes) return pending_.push_back(configuration);
  if (result_.configurations.size() == kMaxGrammarConfigurations)
    fail(Errc::Unsupported, "the grammar is too ambiguous: a text has more than {} readings",
         kMaxGrammarConfigurations);
  result_.configurations.push_back(configuration);
}

void GrammarWalk::expand(GrammarConfiguration configuration) {
  const GrammarNode& node = grammar_.nodes()[configuration.node];
  switch (node.kind) {
    case GrammarNode::Kind::Split:
      for (uint32_t i = 0; i < node.count; ++i)
        visit({grammar_.targets()[node.first + i], configuration.frame});
      break;
    case GrammarNode::Kind::Call:
      call(node, configuration.frame);
      break;
    case GrammarNode::Kind::End:
      pop(configuration.frame);
      break;
    case GrammarNode::Kind::Bytes:
      break;
  }
}

// Callers are only noted here. What is called is entered once they are all known.
void GrammarWalk::call(const GrammarNode& node, uint32_t frame) {
  const bool last = node.count == kNoNode;
  const GrammarCallee& callee = grammar_.callees()[node.first];
  std::vector<GrammarLink>& callers = callers_[node.first];
  called_.insert(node.first);
  if (last) {
    const std::vector<GrammarLink>& links = frames_[frame].links;
    spend(links.size());
    callers.insert(callers.end(), links.begin(), links.end());
  } else {
    callers.push_back({node.count, frame});
  }
  if (!callee.nullable) return;
  if (last)
    pop(frame);
  else
    visit({node.count, frame});
}

void GrammarWalk::pop(uint32_t frame) {
  for (size_t i = 0; i < frames_[frame].links.size(); ++i) {
    const GrammarLink link = frames_[frame].links[i];
    if (link.return_to == kNoNode)
      result_.bottom = true;
    else
      visit({link.return_to, link.parent});
  }
}

void GrammarWalk::begin() {
  ++stamp_;
  n_seen_ = 0;
  pending_.clear();
  for (const uint32_t callee : called_) callers_[callee].clear();
  called_.clear();
  result_ = {};
}

// Callees are entered in their order: when it is one's turn, nothing that is still to come calls it.
GrammarStep GrammarWalk::finish() {
  for (;;) {
    while (!pending_.empty()) {
      const GrammarConfiguration next = pending_.back();
      pending_.pop_back();
      expand(next);
    }
    if (called_.empty()) break;
    const uint32_t callee = *called_.begin();
    called_.erase(called_.begin());
    const uint32_t frame = intern(std::exchange(callers_[callee], {}));
    visit({grammar_.callees()[callee].entry, frame});
  }
  std::sort(result_.configurations.begin(), result_.configurations.end());
  return std::exchange(result_, {});
}

GrammarStep GrammarWalk::start() {
  begin();
  visit({grammar_.root(), 0});
  return finish();
}

GrammarStep GrammarWalk::after_frame(uint32_t frame) {
  begin();
  pop(frame);
  return finish();
}

GrammarStep GrammarWalk::step(std::span<const GrammarConfiguration> from, uint8_t byte) {
  begin();
  for (const GrammarConfiguration& configuration : from) {
    const GrammarNode& node = grammar_.nodes()[configuration.node];
    for (uint32_t i = node.first; i < node.first + node.count; ++i) {
      const ByteEdge& edge = grammar_.edges()[i];
      if (edge.low <= byte && byte <= edge.high) visit({edge.target, configuration.frame});
    }
  }
  return finish();
}

}  // namespace moeflux
