#include "text/pattern.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "text/pattern_syntax.h"

namespace moeflux {
namespace {

constexpr uint64_t kMaxTries = uint64_t{1}
                               << 26;  // of one search; published patterns need a few per character
constexpr size_t kMaxNodes = 10000;
constexpr size_t kMaxMaskedBranches = 32;

// A step of matching; `next` is what must match after it.
struct Node {
  enum class Kind : uint8_t { Accept, Characters, Branch, LookAhead, LineEnd };
  Kind kind = Kind::Accept;
  bool lazy = false, gives_back = false, negative = false;
  uint32_t next = 0;
  uint32_t test = 0, least = 0, most = 0;  // Characters
  std::vector<uint32_t> branches;  // Branch, each leading on to `next`; LookAhead: one, ends in Accept
  std::vector<uint32_t> branches_for_ascii;  // bits of the branches that an ASCII character can start
};

// What a node and all that follows it can start with.
struct Start {
  CodePointSet set;
  bool may_be_empty = false;    // may match without taking a character
  bool always_matches = false;  // whatever the text
};

}  // namespace

struct Pattern::Program {
  std::vector<Node> nodes;
  std::vector<CharacterTest> tests;
  uint32_t start = 0;
  std::optional<CharacterTest> first;  // of every match
  std::string name;                    // for messages
};

namespace {

// Compiles backwards, so that what follows a node is known when it is made.
class Compiler {
 public:
  Compiler(const std::string& name, std::vector<Node>& nodes, std::vector<CharacterTest>& tests)
      : name_(name), nodes_(nodes), tests_(tests) {
    Start accept;
    accept.may_be_empty = accept.always_matches = true;
    accept_ = add(Node{}, std::move(accept));
  }

  uint32_t compile(const PatternExpression& e) { return compile(e, accept_); }
  const Start& start_of(uint32_t node) const { return starts_[node]; }

 private:
  uint32_t compile(const PatternExpression& e, uint32_t next) {
    switch (e.kind) {
      case PatternExpression::Kind::Characters:
        return characters(e, next);
      case PatternExpression::Kind::Sequence:
        for (size_t i = e.parts.size(); i-- > 0;) next = compile(e.parts[i], next);
        return next;
      case PatternExpression::Kind::Alternatives:
        return branch(e.parts, next);
      case PatternExpression::Kind::Optional:
        return optional(e, next);
      case PatternExpression::Kind::LookAhead:
        return look_ahead(e, next);
      case PatternExpression::Kind::LineEnd:
        break;
    }
    Node node;
    node.kind = Node::Kind::LineEnd;
    node.next = next;
    Start start = starts_[next];
    start.always_matches = false;
    return add(std::move(node), std::move(start));
  }

  uint32_t characters(const PatternExpression& e, uint32_t next) {
    const Start& after = starts_[next];
    Node node;
    node.kind = Node::Kind::Characters;
    node.next = next;
    node.least = e.least;
    node.most = e.most;
    node.lazy = e.lazy;
    node.test = test_for(e.set);
    // A shorter run only helps if what follows can fail, and could start with a character of the run.
    const bool next_may_start_inside = after.may_be_empty || !after.set.intersection(e.set).empty();
    node.gives_back = !e.possessive && e.most > e.least && !after.always_matches && next_may_start_inside;
    Start start;
    start.set = e.set;
    if (e.least == 0) {
      start.set.add(after.set);
      start.may_be_empty = after.may_be_empty;
      start.always_matches = after.always_matches;
    }
    return add(std::move(node), std::move(start));
  }

  uint32_t branch(const std::vector<PatternExpression>& parts, uint32_t next) {
    std::vector<uint32_t> branches;
    for (const PatternExpression& part : parts) branches.push_back(compile(part, next));
    return branch_to(std::move(branches), next);
  }

  uint32_t optional(const PatternExpression& e, uint32_t next) {
    const uint32_t with = compile(e.parts[0], next);
    return branch_to(e.lazy ? std::vector{next, with} : std::vector{with, next}, next);
  }

  uint32_t branch_to(std::vector<uint32_t> branches, uint32_t next) {
    Node node;
    node.kind = Node::Kind::Branch;
    node.next = next;
    Start start;
    if (branches.size() <= kMaxMaskedBranches) node.branches_for_ascii.resize(128);
    for (size_t i = 0; i < branches.size(); ++i) {
      const Start& one = starts_[branches[i]];
      start.set.add(one.set);
      start.may_be_empty |= one.may_be_empty;
      start.always_matches |= one.always_matches;
      const CharacterTest& test = tests_[test_for(one.set)];
      for (size_t c = 0; c < node.branches_for_ascii.size(); ++c)
        if (one.may_be_empty || test.ascii(static_cast<unsigned char>(c)))
          node.branches_for_ascii[c] |= uint32_t{1} << i;
    }
    node.branches = std::move(branches);
    return add(std::move(node), std::move(start));
  }

  uint32_t look_ahead(const PatternExpression& e, uint32_t next) {
    Node node;
    node.kind = Node::Kind::LookAhead;
    node.next = next;
    node.negative = e.negative;
    node.branches.push_back(compile(e.parts[0], accept_));
    Start start = starts_[next];
    start.always_matches = false;
    return add(std::move(node), std::move(start));
  }

  uint32_t test_for(const CodePointSet& set) {
    const auto equal = [](const CodePointRange& a, const CodePointRange& b) {
      return a.first == b.first && a.last == b.last;
    };
    for (size_t i = 0; i < sets_.size(); ++i)
      if (std::equal(set.ranges().begin(), set.ranges().end(), sets_[i].ranges().begin(),
                     sets_[i].ranges().end(), equal))
        return static_cast<uint32_t>(i);
    sets_.push_back(set);
    tests_.emplace_back(set);
    return static_cast<uint32_t>(sets_.size() - 1);
  }

  uint32_t add(Node node, Start start) {
    if (nodes_.size() == kMaxNodes) fail(Errc::Unsupported, "{} is too long a pattern", name_);
    nodes_.push_back(std::move(node));
    starts_.push_back(std::move(start));
    return static_cast<uint32_t>(nodes_.size() - 1);
  }

  const std::string& name_;
  std::vector<Node>& nodes_;
  std::vector<CharacterTest>& tests_;
  std::vector<CodePointSet> sets_;
  std::vector<Start> starts_;  // of each node
  uint32_t accept_ = 0;
};

// Tries ways of matching one after the other. The depth of calls is bounded by the pattern, not by the text.
class Matcher {
 public:
  Matcher(const std::vector<Node>& nodes, const std::vector<CharacterTest>& tests, const std::string& name,
          const char* end)
      : nodes_(nodes.data()), tests_(tests.data()), name_(name), end_(end) {}

  // The end of the match that starts at `at`, or null.
  const char* run(uint32_t index, const char* at) {
    while (true) {
      const Node& node = nodes_[index];
      count_step();
      switch (node.kind) {
        case Node::Kind::Accept:
          return at;
        case Node::Kind::LineEnd:
          if (at != end_ && *at != '\n') return nullptr;
          break;
        case Node::Kind::LookAhead:
          if ((run(node.branches[0], at) != nullptr) == node.negative) return nullptr;
          break;
        case Node::Kind::Branch:
          return branch(node, at);
        case Node::Kind::Characters:
          if (node.lazy) return lazy_characters(node, at);
          if (node.gives_back) return characters_giving_back(node, at);
          if (take_characters(node, at) < node.least) return nullptr;
          break;
      }
      index = node.next;
    }
  }

 private:
  void count_step() {
    if (++steps_ > kMaxTries)
      fail(Errc::Unsupported, "{} tries more than {} ways of matching a text", name_, kMaxTries);
  }

  uint32_t take_characters(const Node& node, const char*& at) const {
    const CharacterTest& test = tests_[node.test];
    uint32_t n = 0;
    while (n < node.most && at != end_ && test.take(at)) ++n;
    return n;
  }

  const char* characters_giving_back(const Node& node, const char* at) {
    for (uint32_t n = take_characters(node, at); n >= node.least; --n) {
      if (const char* end = run(node.next, at)) return end;
      if (n == 0) break;
      at = previous_character(at);
    }
    return nullptr;
  }

  const char* lazy_characters(const Node& node, const char* at) {
    const CharacterTest& test = tests_[node.test];
    for (uint32_t n = 0;; ++n) {
      if (n >= node.least)
        if (const char* end = run(node.next, at)) return end;
      if (n == node.most || at == end_ || !test.take(at)) return nullptr;
      count_step();
    }
  }

  const char* branch(const Node& node, const char* at) {
    uint32_t wanted = UINT32_MAX;
    if (at != end_ && static_cast<unsigned char>(*at) < 0x80 && !node.branches_for_ascii.empty())
      wanted = node.branches_for_ascii[static_cast<unsigned char>(*at)];
    for (size_t i = 0; i < node.branches.size(); ++i) {
      if (i < kMaxMaskedBranches && !(wanted >> i & 1)) continue;
      if (const char* end = run(node.branches[i], at)) return end;
    }
    return nullptr;
  }

  const Node* nodes_;
  const CharacterTest* tests_;
  const std::string& name_;
  const char* end_;
  uint64_t steps_ = 0;
};

}  // namespace

Pattern::Pattern(std::string_view expression, const std::string& where) {
  auto program = std::make_unique<Program>();
  program->name = fmt::format("{}: the pattern '{}'", where, expression);
  Compiler compiler(program->name, program->nodes, program->tests);
  program->start = compiler.compile(parse_pattern(expression, where));
  const Start& start = compiler.start_of(program->start);
  if (start.may_be_empty)
    fail(Errc::Unsupported, "{} may match nothing at all, which is not supported", program->name);
  program->first.emplace(start.set);
  program_ = std::move(program);
}

Pattern Pattern::literal(std::string_view text, const std::string& where) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\.[]{}()<>*+-=!?^$|&").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return Pattern(escaped, where);
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

std::optional<Pattern::Match> Pattern::find(std::string_view text, size_t from) const {
  const char *const begin = text.data(), *const end = begin + text.size();
  const CharacterTest& first = *program_->first;
  Matcher matcher(program_->nodes, program_->tests, program_->name, end);
  for (const char* at = begin + from; at != end;) {
    const char* after = at;
    if (first.take(after)) {
      if (const char* match_end = matcher.run(program_->start, at))
        return Match{static_cast<size_t>(at - begin), static_cast<size_t>(match_end - begin)};
    } else {
      next_code_point(after);
    }
    at = after;
  }
  return std::nullopt;
}

}  // namespace moeflux
