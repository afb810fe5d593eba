#include "text/grammar_regular.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/error.h"
#include "text/grammar.h"

namespace moeflux {
namespace {

constexpr size_t kMaxStates = 50'000;

[[noreturn]] void too_complex() {
  fail(Errc::Unsupported, "the pattern is too complex: its automaton has more than {} states", kMaxStates);
}

// Subsets of a grammar's nodes as states. The grammar has no calls: it was made of one rule.
class Determiniser {
 public:
  Determiniser(const Grammar& grammar, RegularWork& work)
      : grammar_(grammar), work_(work), stamp_of_(grammar.nodes().size(), 0) {}

  ByteGraph run() {
    intern(closure({grammar_.root()}, true, false));
    for (size_t i = 0; i < subsets_.size(); ++i) {
      const std::vector<NodeId> subset = subsets_[i];
      const std::vector<ByteEdge> edges = edges_of(subset);
      out_.states[i].edges = edges;
      out_.states[i].accepting = reaches_end(subset, i == 0);
    }
    return std::move(out_);
  }

 private:
  uint32_t intern(std::vector<NodeId> subset) {
    // The start differs from a later state with the same nodes: only there the text can be empty.
    const auto [it, is_new] =
        ids_.try_emplace({subsets_.empty(), subset}, static_cast<uint32_t>(subsets_.size()));
    if (is_new) {
      if (subsets_.size() == kMaxStates) too_complex();
      subsets_.push_back(std::move(subset));
      out_.states.emplace_back();
    }
    return it->second;
  }

  std::vector<NodeId> closure(std::vector<NodeId> pending, bool at_start, bool at_end) {
    std::vector<NodeId> out;
    ++stamp_;
    while (!pending.empty()) {
      const NodeId id = pending.back();
      pending.pop_back();
      if (stamp_of_[id] == stamp_) continue;
      stamp_of_[id] = stamp_;
      work_.spend(1);
      const GrammarNode& node = grammar_.nodes()[id];
      if (node.kind == GrammarNode::Kind::Split)
        for (uint32_t i = 0; i < node.count; ++i) pending.push_back(grammar_.targets()[node.first + i]);
      else
        out.push_back(id);
      if (node.kind != GrammarNode::Kind::Bytes) continue;
      for (uint32_t i = node.first; i < node.first + node.count; ++i) {
        const ByteEdge& edge = grammar_.edges()[i];
        const bool start = edge.low == static_cast<uint8_t>(kTextStart);
        const bool end = edge.low == static_cast<uint8_t>(kTextEnd);
        if ((start && at_start) || (end && at_end)) pending.push_back(edge.target);
      }
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  bool reaches_end(const std::vector<NodeId>& subset, bool at_start) {
    const std::vector<NodeId> reached = closure(subset, at_start, true);
    return std::any_of(reached.begin(), reached.end(),
                       [this](NodeId id) { return grammar_.nodes()[id].kind == GrammarNode::Kind::End; });
  }

  std::vector<ByteEdge> edges_of(const std::vector<NodeId>& subset) {
    std::vector<ByteEdge> all;
    std::array<bool, 257> cuts{};  // bytes at which the set of edges changes
    cuts[0] = cuts[static_cast<uint8_t>(kTextStart)] = true;
    for (const NodeId id : subset) {
      const GrammarNode& node = grammar_.nodes()[id];
      if (node.kind != GrammarNode::Kind::Bytes) continue;
      for (uint32_t i = node.first; i < node.first + node.count; ++i) {
        all.push_back(grammar_.edges()[i]);
        cuts[all.back().low] = cuts[all.back().high + 1] = true;
      }
    }
    std::vector<ByteEdge> out;
    for (uint32_t low = 0; low < static_cast<uint8_t>(kTextStart);) {
      uint32_t high = low;
      while (!cuts[high + 1]) ++high;
      add_edge(all, low, high, out);
      low = high + 1;
    }
    return out;
  }

  void add_edge(const std::vector<ByteEdge>& all, uint32_t low, uint32_t high, std::vector<ByteEdge>& out) {
    std::vector<NodeId> targets;
    for (const ByteEdge& edge : all)
      if (edge.low <= low && low <= edge.high) targets.push_back(edge.target);
    work_.spend(1 + all.size());
    if (targets.empty()) return;
    const uint32_t target = intern(closure(std::move(targets), false, false));
    if (!out.empty() && out.back().target == target && out.back().high + 1u == low)
      out.back().high = static_cast<uint8_t>(high);
    else
      out.push_back({static_cast<uint8_t>(low), static_cast<uint8_t>(high), target});
  }

  const Grammar& grammar_;
  RegularWork& work_;
  std::vector<uint64_t> stamp_of_;
  uint64_t stamp_ = 0;
  std::vector<std::vector<NodeId>> subsets_;
  std::map<std::pair<bool, std::vector<NodeId>>, uint32_t> ids_;
  ByteGraph out_;
};

// Adds a state from which nothing leads away, so that each state has an edge for each byte.
ByteGraph completed(const ByteGraph& graph) {
  ByteGraph out = graph;
  const auto sink = static_cast<uint32_t>(out.states.size());
  out.states.emplace_back();
  for (ByteGraph::State& state : out.states) {
    std::vector<ByteEdge> edges;
    uint32_t from = 0;
    for (const ByteEdge& edge : state.edges) {
      if (edge.low > from)
        edges.push_back({static_cast<uint8_t>(from), static_cast<uint8_t>(edge.low - 1), sink});
      edges.push_back(edge);
      from = edge.high + 1u;
    }
    if (from <= 255) edges.push_back({static_cast<uint8_t>(from), 255, sink});
    state.edges = std::move(edges);
  }
  return out;
}

// States from which no accepting one is reached, and the edges to them, are of no use; neither are states
// that the start does not reach.
ByteGraph trimmed(const ByteGraph& graph) {
  std::vector<std::vector<uint32_t>> before(graph.states.size());
  std::vector<uint32_t> pending;
  std::vector<bool> useful(graph.states.size(), false);
  for (uint32_t i = 0; i < graph.states.size(); ++i) {
    for (const ByteEdge& edge : graph.states[i].edges) before[edge.target].push_back(i);
    if (graph.states[i].accepting) pending.push_back(i);
  }
  while (!pending.empty()) {
    const uint32_t state = pending.back();
    pending.pop_back();
    if (useful[state]) continue;
    useful[state] = true;
    pending.insert(pending.end(), before[state].begin(), before[state].end());
  }
  ByteGraph out;
  if (graph.states.empty() || !useful[0]) return out;
  std::vector<uint32_t> place(graph.states.size(), 0);
  for (uint32_t i = 0, n = 0; i < graph.states.size(); ++i)
    if (useful[i]) place[i] = n++;
  for (size_t i = 0; i < graph.states.size(); ++i) {
    if (!useful[i]) continue;
    out.states.push_back({{}, graph.states[i].accepting});
    for (const ByteEdge& edge : graph.states[i].edges)
      if (useful[edge.target]) out.states.back().edges.push_back({edge.low, edge.high, place[edge.target]});
  }
  return out;
}

}  // namespace

void RegularWork::spend(size_t steps) {
  if (steps > left) fail(Errc::Unsupported, "too complex: its automata take too long to make");
  left -= steps;
}

ByteGraph automaton_of(const Expression& expression, RegularWork& work) {
  GrammarRules rules;
  rules.rules.push_back({"pattern", expression});
  try {
    const Grammar grammar(rules, GrammarCopies::Always);
    work.spend(5000 + 20 * grammar.nodes().size());
    return trimmed(Determiniser(grammar, work).run());
  } catch (const Error& e) {
    if (e.code != Errc::InvalidArgument) throw;
    return {};  // nothing matches
  }
}

ByteGraph automaton_of(const SearchPattern& pattern, RegularWork& work) {
  ByteGraph graph = automaton_of(pattern.text, work);
  for (const Expression& each : pattern.required) graph = intersection(graph, automaton_of(each, work), work);
  for (const Expression& each : pattern.excluded)
    graph = intersection(graph, complement(automaton_of(each, work), work), work);
  return graph;
}

ByteGraph intersection(const ByteGraph& a, const ByteGraph& b, RegularWork& work) {
  ByteGraph out;
  if (a.states.empty() || b.states.empty()) return out;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto intern = [&](uint32_t x, uint32_t y) {
    const auto [it, is_new] = ids.try_emplace({x, y}, static_cast<uint32_t>(pairs.size()));
    if (is_new) {
      if (pairs.size() == kMaxStates) too_complex();
      pairs.emplace_back(x, y);
      out.states.push_back({{}, a.states[x].accepting && b.states[y].accepting});
    }
    return it->second;
  };
  intern(0, 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::pair<uint32_t, uint32_t> pair = pairs[i];
    work.spend(10 + a.states[pair.first].edges.size() * b.states[pair.second].edges.size());
    std::vector<ByteEdge> edges;
    for (const ByteEdge& x : a.states[pair.first].edges)
      for (const ByteEdge& y : b.states[pair.second].edges) {
        const uint8_t low = std::max(x.low, y.low), high = std::min(x.high, y.high);
        if (low <= high) edges.push_back({low, high, intern(x.target, y.target)});
      }
    out.states[i].edges = std::move(edges);
  }
  return trimmed(out);
}

ByteGraph complement(const ByteGraph& graph, RegularWork& work) {
  ByteGraph other = completed(graph);
  if (other.states.size() == 1)
    other.states[0].edges = {{0, 255, 0}};  // there was no state: the sink is the start
  for (ByteGraph::State& state : other.states) state.accepting = !state.accepting;
  const Expression any = Expression::repeat(Expression::one_of(any_code_point()), 0, kUnbounded);
  return intersection(other, automaton_of(any, work), work);
}

bool accepts(const ByteGraph& graph, std::string_view text) {
  if (graph.states.empty()) return false;
  uint32_t state = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const std::vector<ByteEdge>& edges = graph.states[state].edges;
    const auto edge = std::find_if(edges.begin(), edges.end(),
                                   [byte](const ByteEdge& e) { return e.low <= byte && byte <= e.high; });
    if (edge == edges.end()) return false;
    state = edge->target;
  }
  return graph.states[state].accepting;
}

bool is_empty(const ByteGraph& graph) { return trimmed(graph).states.empty(); }

}  // namespace moeflux
