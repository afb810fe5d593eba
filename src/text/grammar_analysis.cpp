#include "text/grammar_analysis.h"

#include <algorithm>

#include "base/error.h"
#include "text/grammar.h"

namespace moeflux {
namespace {

using ExpressionKind = Expression::Kind;
using Presence = Expression::Presence;

constexpr uint64_t kHuge = uint64_t{1} << 40;
constexpr uint64_t kInlineNodes = 256;      // a rule of this size is copied to each of its callers
constexpr uint64_t kInlineTotal = 200'000;  // unless the automaton becomes larger than this
constexpr uint32_t kInlineLevels = 40;      // bounds the depth of the builder's recursion

uint64_t saturating_add(uint64_t a, uint64_t b) { return std::min(kHuge, a + b); }
uint64_t saturating_multiply(uint64_t a, uint64_t b) { return b != 0 && a > kHuge / b ? kHuge : a * b; }

template <class Visit>
void for_each_call(const Expression& e, Visit&& visit) {
  if (e.kind == ExpressionKind::Rule) visit(e.rule);
  for (const Expression& part : e.parts) for_each_call(part, visit);
}

bool list_is_nullable(const Expression& e, const std::vector<RuleFacts>& facts) {
  for (size_t i = 0; i < e.presence.size(); ++i)
    if (e.presence[i] == Presence::Required && !is_nullable(e.parts[i], facts)) return false;
  if (e.least == 0) return true;
  return std::all_of(e.parts.begin(), e.parts.end(),
                     [&](const Expression& part) { return is_nullable(part, facts); });
}

bool is_productive(const Expression& e, const std::vector<RuleFacts>& facts) {
  const auto productive = [&facts](const Expression& part) { return is_productive(part, facts); };
  switch (e.kind) {
    case ExpressionKind::Literal:
      return true;
    case ExpressionKind::Class:
      return !e.ranges.empty();
    case ExpressionKind::Sequence:
      return std::all_of(e.parts.begin(), e.parts.end(), productive);
    case ExpressionKind::Choice:
      return std::any_of(e.parts.begin(), e.parts.end(), productive);
    case ExpressionKind::Repeat:
      return e.least == 0 || productive(e.parts[0]);
    case ExpressionKind::Rule:
      return facts[e.rule].productive;
    case ExpressionKind::Graph:
      return !e.graph.states.empty();
    case ExpressionKind::List:
      for (size_t i = 0; i < e.presence.size(); ++i)
        if (e.presence[i] == Presence::Required && !productive(e.parts[i])) return false;
      return true;
  }
  return false;
}

// The rules that an expression may call before it has matched a byte.
void collect_left_calls(const Expression& e, const std::vector<RuleFacts>& facts,
                        std::vector<uint32_t>& out) {
  switch (e.kind) {
    case ExpressionKind::Rule:
      out.push_back(e.rule);
      break;
    case ExpressionKind::Sequence:
      for (const Expression& part : e.parts) {
        collect_left_calls(part, facts, out);
        if (!is_nullable(part, facts)) break;
      }
      break;
    case ExpressionKind::Choice:
    case ExpressionKind::Repeat:
    case ExpressionKind::List:
      for (const Expression& part : e.parts) collect_left_calls(part, facts, out);
      break;
    case ExpressionKind::Literal:
    case ExpressionKind::Class:
    case ExpressionKind::Graph:
      break;
  }
}

// Strongly connected groups of rules, callees before their callers; one entry of `groups` per group.
class Grouping {
 public:
  explicit Grouping(const std::vector<std::vector<uint32_t>>& calls)
      : calls_(calls), index_(calls.size(), 0), low_(calls.size(), 0), on_stack_(calls.size(), false) {
    for (uint32_t rule = 0; rule < calls.size(); ++rule)
      if (index_[rule] == 0) explore(rule);
  }
  std::vector<std::vector<uint32_t>> groups;

 private:
  struct Visit {
    uint32_t rule;
    size_t next_call;
  };

  void enter(uint32_t rule) {
    index_[rule] = low_[rule] = ++counter_;
    stack_.push_back(rule);
    on_stack_[rule] = true;
    path_.push_back({rule, 0});
  }

  void explore(uint32_t start) {
    enter(start);
    while (!path_.empty()) {
      Visit& at = path_.back();
      const uint32_t rule = at.rule;
      if (at.next_call < calls_[rule].size()) {
        const uint32_t callee = calls_[rule][at.next_call++];
        if (index_[callee] == 0)
          enter(callee);
        else if (on_stack_[callee])
          low_[rule] = std::min(low_[rule], index_[callee]);
        continue;
      }
      path_.pop_back();
      if (!path_.empty()) low_[path_.back().rule] = std::min(low_[path_.back().rule], low_[rule]);
      if (low_[rule] == index_[rule]) close_group(rule);
    }
  }

  void close_group(uint32_t rule) {
    groups.emplace_back();
    uint32_t member = rule;
    do {
      member = stack_.back();
      stack_.pop_back();
      on_stack_[member] = false;
      groups.back().push_back(member);
    } while (member != rule);
  }

  const std::vector<std::vector<uint32_t>>& calls_;
  std::vector<uint32_t> index_, low_;
  std::vector<bool> on_stack_;
  std::vector<uint32_t> stack_;
  std::vector<Visit> path_;
  uint32_t counter_ = 0;
};

bool calls_itself(const std::vector<uint32_t>& group, const std::vector<std::vector<uint32_t>>& calls) {
  return group.size() > 1 || std::count(calls[group[0]].begin(), calls[group[0]].end(), group[0]) > 0;
}

void find_nullable_and_productive(const GrammarRules& rules, const std::vector<std::vector<uint32_t>>& groups,
                                  std::vector<RuleFacts>& facts) {
  for (const std::vector<uint32_t>& group : groups) {
    for (bool changed = true; changed;) {
      changed = false;
      for (const uint32_t rule : group) {
        RuleFacts& fact = facts[rule];
        const Expression& body = rules.rules[rule].body;
        if (!fact.nullable && is_nullable(body, facts)) fact.nullable = changed = true;
        if (!fact.productive && is_productive(body, facts)) fact.productive = changed = true;
      }
    }
  }
}

void refuse_left_recursion(const GrammarRules& rules, const std::vector<RuleFacts>& facts) {
  std::vector<std::vector<uint32_t>> left(rules.rules.size());
  for (size_t i = 0; i < left.size(); ++i) collect_left_calls(rules.rules[i].body, facts, left[i]);
  for (const std::vector<uint32_t>& group : Grouping(left).groups)
    if (calls_itself(group, left))
      fail(Errc::InvalidArgument,
           "the rule '{}' is left recursive: it calls itself before it has matched a character",
           rules.rules[group.front()].name);
}

// Decides for this limit which rules are copied, and returns the size of everything.
uint64_t decide_inlining(const GrammarRules& rules, const std::vector<std::vector<uint32_t>>& groups,
                         const std::vector<std::vector<uint32_t>>& calls, uint64_t limit,
                         std::vector<RuleFacts>& facts) {
  for (RuleFacts& fact : facts) fact.inlined = false;
  uint64_t total = 0;
  for (const std::vector<uint32_t>& group : groups) {
    for (const uint32_t rule : group) {
      RuleFacts& fact = facts[rule];
      fact.size = estimated_size(rules.rules[rule].body, facts);
      fact.level = 0;
      for (const uint32_t callee : calls[rule])
        if (facts[callee].inlined) fact.level = std::max(fact.level, facts[callee].level + 1);
      const bool small = fact.size <= limit || fact.n_calls == 1;
      fact.inlined = small && !fact.recursive && fact.level < kInlineLevels && rule != rules.root;
      if (!fact.inlined) total = saturating_add(total, fact.size);
    }
  }
  return total;
}

}  // namespace

bool is_nullable(const Expression& e, const std::vector<RuleFacts>& facts) {
  const auto nullable = [&facts](const Expression& part) { return is_nullable(part, facts); };
  switch (e.kind) {
    case ExpressionKind::Literal:
      return e.bytes.empty();
    case ExpressionKind::Class:
      return false;
    case ExpressionKind::Sequence:
      return std::all_of(e.parts.begin(), e.parts.end(), nullable);
    case ExpressionKind::Choice:
      return std::any_of(e.parts.begin(), e.parts.end(), nullable);
    case ExpressionKind::Repeat:
      return e.least == 0 || nullable(e.parts[0]);
    case ExpressionKind::Rule:
      return facts[e.rule].nullable;
    case ExpressionKind::Graph:
      return !e.graph.states.empty() && e.graph.states[0].accepting;
    case ExpressionKind::List:
      return list_is_nullable(e, facts);
  }
  return false;
}

bool is_outlined(uint64_t body_size, uint64_t n_copies) {
  // Short parts, such as the characters of a string, are worth many copies: what a token may do inside a
  // string is then known without a look at the callers.
  return body_size > 64 ? n_copies > 8 : body_size > 1 && n_copies > (kMaxGrammarNodes * 3 / 4) / body_size;
}

uint64_t estimated_size(const Expression& e, const std::vector<RuleFacts>& facts) {
  uint64_t parts = 1;
  for (const Expression& part : e.parts) parts = saturating_add(parts, estimated_size(part, facts));
  switch (e.kind) {
    case ExpressionKind::Literal:
      return e.bytes.size();
    case ExpressionKind::Class:
      return e.ranges.empty() || e.ranges.back().high < 0x80 ? 1 : 8 + e.ranges.size();
    case ExpressionKind::Rule:
      return facts[e.rule].inlined ? facts[e.rule].size : 1;
    case ExpressionKind::Graph:
      return 2 * e.graph.states.size();
    case ExpressionKind::Repeat: {
      const uint64_t n_copies = e.most == kUnbounded ? uint64_t{e.least} + 1 : e.most;
      return is_outlined(parts - 1, n_copies) ? saturating_add(parts, 2 * n_copies)
                                              : saturating_multiply(parts, n_copies);
    }
    case ExpressionKind::List:
      return saturating_multiply(parts, 1 + uint64_t{e.most == kUnbounded ? e.least : e.most});
    case ExpressionKind::Sequence:
    case ExpressionKind::Choice:
      return parts;
  }
  return parts;
}

std::vector<RuleFacts> analyse_rules(const GrammarRules& rules) {
  std::vector<RuleFacts> facts(rules.rules.size());
  std::vector<std::vector<uint32_t>> calls(rules.rules.size());
  for (size_t i = 0; i < calls.size(); ++i)
    for_each_call(rules.rules[i].body, [&](uint32_t callee) {
      calls[i].push_back(callee);
      ++facts[callee].n_calls;
    });
  const Grouping grouping(calls);
  for (const std::vector<uint32_t>& group : grouping.groups)
    for (const uint32_t rule : group) facts[rule].recursive = calls_itself(group, calls);
  find_nullable_and_productive(rules, grouping.groups, facts);
  refuse_left_recursion(rules, facts);
  for (uint64_t limit = kInlineNodes; limit > 0; limit /= 4)
    if (decide_inlining(rules, grouping.groups, calls, limit, facts) <= kInlineTotal) break;
  return facts;
}

}  // namespace moeflux
