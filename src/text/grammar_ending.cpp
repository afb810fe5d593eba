#include "text/grammar_ending.h"

#include <algorithm>
#include <queue>

#include "base/error.h"

namespace moeflux {
namespace {

using NodeKind = GrammarNode::Kind;

constexpr uint64_t kUnknown = UINT64_MAX;
constexpr uint64_t kFarthest = uint64_t{1} << 60;  // rules that call each other twice soon get there

uint64_t sum(uint64_t a, uint64_t b) {
  return a == kUnknown || b == kUnknown ? kUnknown : std::min(a + b, kFarthest);
}

// Distances in the order of their size, as in any search for shortest paths; what is special is that a call
// takes what is called and what comes after it.
class Distances {
 public:
  explicit Distances(const Grammar& grammar) : grammar_(grammar), bytes_(grammar.nodes().size(), kUnknown) {
    find_dependents();
    for (NodeId n = 0; n < bytes_.size(); ++n)
      if (grammar.nodes()[n].kind == NodeKind::End) queue_.push({0, n});
    while (!queue_.empty()) {
      const auto [bytes, node] = queue_.top();
      queue_.pop();
      if (bytes_[node] != kUnknown) continue;
      bytes_[node] = bytes;
      for (uint32_t i = first_[node]; i < first_[node + 1]; ++i) offer(dependents_[i], node);
    }
  }

  std::vector<uint64_t> take() { return std::move(bytes_); }

 private:
  struct Offer {
    uint64_t bytes;
    NodeId node;
    bool operator>(const Offer& other) const { return bytes > other.bytes; }
  };

  template <class Visit>
  void for_each_dependency(NodeId n, Visit&& visit) const {
    const GrammarNode& node = grammar_.nodes()[n];
    switch (node.kind) {
      case NodeKind::Bytes:
        for (uint32_t i = 0; i < node.count; ++i) visit(grammar_.edges()[node.first + i].target);
        break;
      case NodeKind::Split:
        for (uint32_t i = 0; i < node.count; ++i) visit(grammar_.targets()[node.first + i]);
        break;
      case NodeKind::Call:
        visit(grammar_.callees()[node.first].entry);
        if (node.count != kNoNode) visit(node.count);
        break;
      case NodeKind::End:
        break;
    }
  }

  void find_dependents() {
    first_.assign(bytes_.size() + 1, 0);
    for (NodeId n = 0; n < bytes_.size(); ++n) for_each_dependency(n, [&](NodeId on) { ++first_[on + 1]; });
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    dependents_.resize(first_.back());
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    for (NodeId n = 0; n < bytes_.size(); ++n)
      for_each_dependency(n, [&](NodeId on) { dependents_[next[on]++] = n; });
  }

  void offer(NodeId n, NodeId known) {
    const GrammarNode& node = grammar_.nodes()[n];
    uint64_t bytes = sum(bytes_[known], node.kind == NodeKind::Bytes ? 1 : 0);
    if (node.kind == NodeKind::Call && node.count != kNoNode) {
      bytes = sum(bytes_[grammar_.callees()[node.first].entry], bytes_[node.count]);
      if (bytes == kUnknown) return;
    }
    if (bytes_[n] == kUnknown) queue_.push({bytes, n});
  }

  const Grammar& grammar_;
  std::vector<uint64_t> bytes_;
  std::vector<uint32_t> first_;     // per node: its part of
  std::vector<NodeId> dependents_;  // the nodes whose distance needs its own
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> queue_;
};

}  // namespace

GrammarEnding::GrammarEnding(const Grammar& grammar) : grammar_(grammar), bytes_(Distances(grammar).take()) {}

GrammarEnding::Way GrammarEnding::best(const GrammarState& state) const {
  if (state.accepting() || state.final()) return {0, 0};
  std::vector<uint64_t> below(state.frames().size(), kUnknown);  // per frame: what its callers still need
  for (size_t f = 0; f < below.size(); ++f)                      // parents have lower numbers
    for (const GrammarLink& link : state.frames()[f].links)
      below[f] =
          std::min(below[f], link.return_to == kNoNode ? 0 : sum(bytes_[link.return_to], below[link.parent]));
  Way way{kUnknown, 0};
  for (const GrammarConfiguration& c : state.configurations()) {
    const GrammarNode& node = grammar_.nodes()[c.node];
    for (uint32_t i = node.first; i < node.first + node.count; ++i) {
      const ByteEdge& edge = grammar_.edges()[i];
      const uint64_t bytes = sum(1, sum(bytes_[edge.target], below[c.frame]));
      if (bytes < way.bytes || (bytes == way.bytes && edge.low < way.first)) way = {bytes, edge.low};
    }
  }
  check(way.bytes != kUnknown, "every state of a grammar can be completed");
  return way;
}

std::string GrammarEnding::text(GrammarState state, size_t most_bytes) const {
  std::string text;
  for (Way way = best(state); way.bytes > 0 && text.size() < most_bytes; way = best(state)) {
    const char byte = static_cast<char>(way.first);
    if (!grammar_.advance(state, {&byte, 1})) break;  // would be nested too deep
    text += byte;
  }
  return text;
}

}  // namespace moeflux
