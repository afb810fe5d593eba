// Makes the automaton of a grammar. Expressions are compiled backwards: the node to go on at is known first.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "text/grammar.h"
#include "text/grammar_analysis.h"
#include "text/grammar_utf8.h"

namespace moeflux {

namespace {

// Finds for each node the least number of frames that an end needs, in ascending order of that number. Nodes
// that are never reached cannot end.
class HeightFinder {
 public:
  HeightFinder(std::vector<GrammarNode>& nodes, const std::vector<ByteEdge>& edges,
               const std::vector<NodeId>& targets)
      : nodes_(nodes), before_(nodes.size()) {
    for (NodeId i = 0; i < nodes.size(); ++i) {
      const GrammarNode& node = nodes[i];
      if (node.kind == GrammarNode::Kind::Bytes)
        for (uint32_t k = 0; k < node.count; ++k) before_[edges[node.first + k].target].push_back(i);
      if (node.kind == GrammarNode::Kind::Split)
        for (uint32_t k = 0; k < node.count; ++k) before_[targets[node.first + k]].push_back(i);
      if (node.kind == GrammarNode::Kind::Call) {
        before_[node.first].push_back(i);
        if (node.count != kNoNode) before_[node.count].push_back(i);
      }
    }
  }

  void run() {
    offer(0, 0);
    for (size_t height = 0; height < queues_.size(); ++height) {
      for (size_t i = 0; i < queues_[height].size(); ++i) {
        const NodeId node = queues_[height][i];
        if (nodes_[node].height <= height) continue;
        nodes_[node].height = static_cast<uint32_t>(height);
        for (const NodeId earlier : before_[node]) reach(earlier, height);
      }
    }
  }

 private:
  void offer(NodeId node, size_t height) {
    if (queues_.size() <= height) queues_.resize(height + 1);
    queues_[height].push_back(node);
  }

  void reach(NodeId node, size_t height) {
    const GrammarNode& n = nodes_[node];
    if (n.height != kNoNode) return;
    if (n.kind != GrammarNode::Kind::Call || n.count == kNoNode) return offer(node, height);
    const uint32_t inside = nodes_[n.first].height, after = nodes_[n.count].height;
    if (inside != kNoNode && after != kNoNode) offer(node, std::max<size_t>(size_t{inside} + 1, after));
  }

  std::vector<GrammarNode>& nodes_;
  std::vector<std::vector<NodeId>> before_;
  std::vector<std::vector<NodeId>> queues_;
};

// Puts what is called in order: whoever calls another before it has matched a byte comes first. There are no
// cycles, since left recursion was refused. Calls then name their callee's place in that order, not its
// entry.
class CalleeOrder {
 public:
  CalleeOrder(std::vector<GrammarNode>& nodes, const std::vector<NodeId>& targets)
      : nodes_(nodes),
        targets_(targets),
        index_of_(nodes.size(), kNoNode),
        stamp_of_(nodes.size(), kNoNode) {}

  std::vector<GrammarCallee> run() {
    for (const GrammarNode& node : nodes_)
      if (node.kind == GrammarNode::Kind::Call && index_of_[node.first] == kNoNode) {
        index_of_[node.first] = static_cast<uint32_t>(callees_.size());
        callees_.push_back({node.first, false});
      }
    find_nullable();
    std::vector<std::vector<uint32_t>> left(callees_.size());
    for (uint32_t i = 0; i < callees_.size(); ++i) left[i] = explore(i);
    return sorted(left);
  }

 private:
  // An end that is reached without a byte may make further callees nullable, and so on.
  void find_nullable() {
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t i = static_cast<uint32_t>(callees_.size()); i-- > 0;) {
        if (callees_[i].nullable) continue;
        explore(i);
        changed = changed || callees_[i].nullable;
      }
    }
  }

  // Follows a callee without a byte; notes whether it ends, and returns what it calls.
  std::vector<uint32_t> explore(uint32_t callee) {
    std::vector<uint32_t> calls;
    ++stamp_;
    std::vector<NodeId> pending;
    visit(callees_[callee].entry, pending);
    while (!pending.empty()) {
      const GrammarNode& node = nodes_[pending.back()];
      pending.pop_back();
      if (node.kind == GrammarNode::Kind::End) callees_[callee].nullable = true;
      if (node.kind == GrammarNode::Kind::Split)
        for (uint32_t i = 0; i < node.count; ++i) visit(targets_[node.first + i], pending);
      if (node.kind != GrammarNode::Kind::Call) continue;
      calls.push_back(index_of_[node.first]);
      if (callees_[calls.back()].nullable) visit(node.count == kNoNode ? 0 : node.count, pending);
    }
    return calls;
  }

  void visit(NodeId node, std::vector<NodeId>& pending) {
    if (stamp_of_[node] == stamp_) return;
    stamp_of_[node] = stamp_;
    pending.push_back(node);
  }

  std::vector<GrammarCallee> sorted(const std::vector<std::vector<uint32_t>>& left) {
    std::vector<uint32_t> n_callers(callees_.size(), 0), order, place(callees_.size(), kNoNode);
    for (const std::vector<uint32_t>& calls : left)
      for (const uint32_t callee : calls) ++n_callers[callee];
    for (uint32_t i = 0; i < callees_.size(); ++i)
      if (n_callers[i] == 0) order.push_back(i);
    std::vector<GrammarCallee> out;
    for (size_t i = 0; i < order.size(); ++i) {
      place[order[i]] = static_cast<uint32_t>(out.size());
      out.push_back(callees_[order[i]]);
      for (const uint32_t callee : left[order[i]])
        if (--n_callers[callee] == 0) order.push_back(callee);
    }
    check(out.size() == callees_.size(), "left recursion was refused");
    for (GrammarNode& node : nodes_)
      if (node.kind == GrammarNode::Kind::Call) node.first = place[index_of_[node.first]];
    return out;
  }

  std::vector<GrammarNode>& nodes_;
  const std::vector<NodeId>& targets_;
  std::vector<uint32_t> index_of_;  // of entries
  std::vector<uint32_t> stamp_of_;
  uint32_t stamp_ = 0;
  std::vector<GrammarCallee> callees_;
};

}  // namespace

class GrammarBuilder {
 public:
  GrammarBuilder(const GrammarRules& rules, GrammarCopies copies, Grammar& out)
      : rules_(rules), facts_(analyse_rules(rules)), copies_(copies), out_(out) {}

  void build() {
    add({GrammarNode::Kind::End, 0, 0});
    add_split({});
    entry_of_.assign(rules_.rules.size(), kNoNode);
    require_rule(rules_.root);
    while (!unbuilt_.empty()) {
      current_ = unbuilt_.back();
      unbuilt_.pop_back();
      entry_of_[current_] = compile(rules_.rules[current_].body, kEnd);
    }
    for (const auto& [node, rule] : calls_) out_.nodes_[node].first = entry_of_[rule];
    out_.root_ = entry_of_[rules_.root];
    HeightFinder(out_.nodes_, out_.edges_, out_.targets_).run();
    out_.callees_ = CalleeOrder(out_.nodes_, out_.targets_).run();
  }

 private:
  static constexpr NodeId kEnd = 0, kImpossible = 1;

  // nodes

  NodeId add(GrammarNode node) {
    if (out_.nodes_.size() == kMaxGrammarNodes)
      fail(Errc::Unsupported, "the grammar needs more than {} states; the limit was reached in rule '{}'",
           kMaxGrammarNodes, rules_.rules[current_].name);
    out_.nodes_.push_back(node);
    return static_cast<NodeId>(out_.nodes_.size() - 1);
  }

  NodeId add_bytes(const std::vector<ByteEdge>& edges) {
    const auto first = static_cast<uint32_t>(out_.edges_.size());
    out_.edges_.insert(out_.edges_.end(), edges.begin(), edges.end());
    return add({GrammarNode::Kind::Bytes, first, static_cast<uint32_t>(edges.size())});
  }

  NodeId add_split(const std::vector<NodeId>& targets) {
    const NodeId node = reserve_split(targets.size());
    set_targets(node, targets);
    return node;
  }

  NodeId reserve_split(size_t n_targets) {
    const auto first = static_cast<uint32_t>(out_.targets_.size());
    out_.targets_.resize(out_.targets_.size() + n_targets, kNoNode);
    return add({GrammarNode::Kind::Split, first, static_cast<uint32_t>(n_targets)});
  }

  void set_targets(NodeId node, const std::vector<NodeId>& targets) {
    std::copy(targets.begin(), targets.end(), out_.targets_.begin() + out_.nodes_[node].first);
  }

  // A call that is the last thing its rule does needs no frame: lists that call themselves at their end do
  // not grow the stack.
  NodeId add_call(NodeId entry, NodeId next) {
    return add({GrammarNode::Kind::Call, entry, next == kEnd ? kNoNode : next});
  }

  void require_rule(uint32_t rule) {
    if (wanted_.empty()) wanted_.resize(rules_.rules.size(), false);
    if (!wanted_[rule]) unbuilt_.push_back(rule);
    wanted_[rule] = true;
  }

  // expressions

  NodeId compile(const Expression& e, NodeId next) {
    switch (e.kind) {
      case Expression::Kind::Literal:
        return compile_literal(e.bytes, next);
      case Expression::Kind::Class:
        return compile_class(e.ranges, next);
      case Expression::Kind::Sequence:
        for (auto part = e.parts.rbegin(); part != e.parts.rend(); ++part) next = compile(*part, next);
        return next;
      case Expression::Kind::Choice:
        return compile_choice(e, next);
      case Expression::Kind::Repeat:
        return compile_repeat(e, next);
      case Expression::Kind::Rule:
        return compile_rule(e.rule, next);
      case Expression::Kind::List:
        return compile_list(e, next);
      case Expression::Kind::Graph:
        return compile_graph(e.graph, next);
    }
    return kNoNode;
  }

  NodeId compile_literal(std::string_view bytes, NodeId next) {
    for (auto it = bytes.rbegin(); it != bytes.rend(); ++it) {
      const auto byte = static_cast<uint8_t>(*it);
      next = add_bytes({{byte, byte, next}});
    }
    return next;
  }

  NodeId compile_rule(uint32_t rule, NodeId next) {
    if (facts_[rule].inlined) return compile(rules_.rules[rule].body, next);
    require_rule(rule);
    const NodeId node = add_call(kNoNode, next);
    calls_.emplace_back(node, rule);
    return node;
  }

  NodeId compile_class(const CodeRanges& ranges, NodeId next) {
    class_nodes_.clear();
    const std::vector<Utf8Sequence> sequences = utf8_sequences(ranges);
    return compile_sequences(sequences.data(), sequences.data() + sequences.size(), 0, next);
  }

  NodeId compile_sequences(const Utf8Sequence* begin, const Utf8Sequence* end, size_t place, NodeId next) {
    std::vector<ByteEdge> edges;
    while (begin != end) {
      const ByteRange range = begin->ranges[place];
      const Utf8Sequence* group = begin;
      while (group != end && group->ranges[place] == range) ++group;
      const NodeId target =
          begin->length == place + 1 ? next : compile_sequences(begin, group, place + 1, next);
      if (!edges.empty() && edges.back().target == target && edges.back().high + 1 == range.low)
        edges.back().high = range.high;
      else
        edges.push_back({range.low, range.high, target});
      begin = group;
    }
    // Most continuations of a class are alike: one node serves all of them.
    for (const auto& [known, node] : class_nodes_)
      if (known == edges) return node;
    const NodeId node = add_bytes(edges);
    class_nodes_.emplace_back(std::move(edges), node);
    return node;
  }

  NodeId compile_choice(const Expression& e, NodeId next) {
    const bool words = e.parts.size() > 4 &&
                       std::all_of(e.parts.begin(), e.parts.end(),
                                   [](const Expression& p) { return p.kind == Expression::Kind::Literal; });
    if (words) return compile_words(e, next);
    std::vector<NodeId> targets;
    for (const Expression& part : e.parts) targets.push_back(compile(part, next));
    return add_split(targets);
  }

  // Many literals share their beginnings, so that a state holds one configuration rather than one per word.
  NodeId compile_words(const Expression& e, NodeId next) {
    std::vector<std::string_view> words;
    for (const Expression& part : e.parts) words.push_back(part.bytes);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    return compile_word_group(words.data(), words.data() + words.size(), 0, next);
  }

  NodeId compile_word_group(const std::string_view* begin, const std::string_view* end, size_t place,
                            NodeId next) {
    if (end - begin == 1) return compile_literal(begin->substr(place), next);
    const bool ends_here = begin->size() == place;
    if (ends_here) ++begin;
    std::vector<ByteEdge> edges;
    while (begin != end) {
      const char byte = (*begin)[place];
      const std::string_view* group = begin;
      while (group != end && (*group)[place] == byte) ++group;
      // Where all go on alike there is nothing to branch on: recursion would be as deep as the words are
      // long.
      size_t common = place + 1;
      while (common < begin->size() && common < (group - 1)->size() &&
             (*begin)[common] == (*(group - 1))[common])
        ++common;
      const NodeId rest = compile_word_group(begin, group, common, next);
      const NodeId target = compile_literal(begin->substr(place + 1, common - place - 1), rest);
      edges.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), target});
      begin = group;
    }
    const NodeId node = add_bytes(edges);
    return ends_here ? add_split({node, next}) : node;
  }

  NodeId compile_graph(const ByteGraph& graph, NodeId next) {
    if (graph.states.empty()) return kImpossible;
    std::vector<NodeId> nodes;  // one Split per state: its edges, and the end
    for (const ByteGraph::State& state : graph.states)
      nodes.push_back(reserve_split(state.accepting ? 2 : 1));
    for (size_t i = 0; i < graph.states.size(); ++i) {
      std::vector<ByteEdge> edges = graph.states[i].edges;
      for (ByteEdge& edge : edges) edge.target = nodes[edge.target];
      std::vector<NodeId> targets{add_bytes(edges)};
      if (graph.states[i].accepting) targets.push_back(next);
      set_targets(nodes[i], targets);
    }
    return nodes[0];
  }

  // repetition

  struct Copy {
    NodeId begin, end;
  };

  NodeId compile_repeat(const Expression& e, NodeId next) {
    const Expression& part = e.parts[0];
    const uint64_t n_copies = e.most == kUnbounded ? uint64_t{e.least} + 1 : e.most;
    if (copies_ == GrammarCopies::Always || !is_outlined(estimated_size(part, facts_), n_copies))
      return repeat(e, next, [&](NodeId then) { return compile(part, then); });
    const NodeId entry = compile(part, kEnd);
    return repeat(e, next, [&](NodeId then) { return add_call(entry, then); });
  }

  template <class CompilePart>
  NodeId repeat(const Expression& e, NodeId next, CompilePart&& compile_part) {
    const bool distinguishable = is_nullable(e.parts[0], facts_);  // copies may be skipped without a byte
    std::vector<Copy> copies;
    if (e.most == kUnbounded) {
      const NodeId loop = reserve_split(2);
      set_targets(loop, {compile_part(loop), next});
      next = loop;
    } else {
      NodeId then = next;
      for (uint32_t i = e.least; i < e.most; ++i) {
        const NodeId begin = end_of_nodes();
        then = add_split({compile_part(then), next});
        copies.push_back({begin, end_of_nodes()});
      }
      if (!distinguishable) add_aliases(copies);
      next = then;
    }
    copies.clear();
    for (uint32_t i = 0; i < e.least; ++i) {
      const NodeId begin = end_of_nodes();
      next = compile_part(next);
      copies.push_back({begin, end_of_nodes()});
    }
    if (!distinguishable) add_aliases(copies);
    return next;
  }

  NodeId end_of_nodes() const { return static_cast<NodeId>(out_.nodes_.size()); }

  // Copies in the order of their making: the one before the end is first, the one at the start is last. Copy
  // i has i copies after it, each of a byte at least.
  void add_aliases(const std::vector<Copy>& copies) {
    if (copies.size() < 16) return;  // no token is so short that it would pay
    const Copy& first = copies.back();
    out_.first_alias_.resize(out_.nodes_.size(), kNoNode);
    for (uint32_t i = 0; i + 1 < copies.size(); ++i) {
      for (NodeId node = copies[i].begin; node < copies[i].end; ++node) {
        const auto index = static_cast<uint32_t>(out_.aliases_.size());
        out_.aliases_.push_back({first.begin + (node - copies[i].begin), i, out_.first_alias_[node]});
        out_.first_alias_[node] = index;
      }
    }
  }

  // lists

  // Elements before `at` are done and `n_there` of them were there: counts beyond which nothing changes are
  // one.
  struct ListPlace {
    size_t at;
    uint32_t n_there;
    auto operator<=>(const ListPlace&) const = default;
  };
  struct List {
    const Expression& e;
    NodeId next;
    uint32_t most_counted;
    std::map<ListPlace, NodeId> places;    // the Split of each place
    std::map<ListPlace, NodeId> elements;  // the element `at`, after which n_there were there
    std::vector<ListPlace> unbuilt;
  };

  NodeId compile_list(const Expression& e, NodeId next) {
    List list{e, next, e.most == kUnbounded ? std::max(e.least, 1u) : e.most, {}, {}, {}};
    const NodeId start = list_place(list, {0, 0});
    while (!list.unbuilt.empty()) {
      const ListPlace place = list.unbuilt.back();
      list.unbuilt.pop_back();
      build_list_place(list, place);
    }
    return start;
  }

  NodeId list_place(List& list, ListPlace place) {
    const auto found = list.places.find(place);
    if (found != list.places.end()) return found->second;
    const NodeId node = reserve_split(2);
    list.places.emplace(place, node);
    list.unbuilt.push_back(place);
    return node;
  }

  void build_list_place(List& list, ListPlace place) {
    const Expression& e = list.e;
    if (place.at == e.presence.size()) {
      const bool enough = place.n_there >= e.least;
      return set_targets(list.places.at(place), {enough ? list.next : kImpossible, kImpossible});
    }
    const Expression::Presence presence = e.presence[place.at];
    NodeId skip = kImpossible, take = kImpossible;
    if (presence != Expression::Presence::Required) skip = list_place(list, {place.at + 1, place.n_there});
    if (e.most == kUnbounded || place.n_there < e.most) {
      const uint32_t there = std::min(place.n_there + 1, list.most_counted);
      take = list_element(list, {place.at, there}, presence == Expression::Presence::Many);
      if (place.n_there > 0) take = compile(e.parts.back(), take);
    }
    set_targets(list.places.at(place), {take, skip});
  }

  NodeId list_element(List& list, ListPlace after, bool again) {
    const auto found = list.elements.find(after);
    if (found != list.elements.end()) return found->second;
    const NodeId then = list_place(list, {after.at + (again ? 0 : 1), after.n_there});
    const NodeId node = compile(list.e.parts[after.at], then);
    list.elements.emplace(after, node);
    return node;
  }

  const GrammarRules& rules_;
  const std::vector<RuleFacts> facts_;
  const GrammarCopies copies_;
  Grammar& out_;
  std::vector<NodeId> entry_of_;
  std::vector<bool> wanted_;
  std::vector<uint32_t> unbuilt_;
  std::vector<std::pair<NodeId, uint32_t>> calls_;  // of rules that may not be built yet
  std::vector<std::pair<std::vector<ByteEdge>, NodeId>> class_nodes_;
  uint32_t current_ = 0;
};

Grammar::Grammar(const GrammarRules& rules, GrammarCopies copies) {
  if (rules.rules.size() > kMaxGrammarRules)
    fail(Errc::Unsupported, "the grammar has {} rules, more than {}", rules.rules.size(), kMaxGrammarRules);
  GrammarBuilder(rules, copies, *this).build();
  const std::string& name = rules.rules[rules.root].name;
  if (nodes_[root_].height == kNoNode)
    fail(Errc::InvalidArgument, "no text can match: the rule '{}' can never come to an end", name);
  if (nodes_[root_].height > kMaxGrammarDepth)
    fail(Errc::Unsupported, "the rule '{}' needs {} nested calls to come to an end, more than {}", name,
         nodes_[root_].height, kMaxGrammarDepth);
}

}  // namespace moeflux
