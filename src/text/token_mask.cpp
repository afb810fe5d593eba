#include "text/token_mask.h"

#include <algorithm>
#include <array>
#include <list>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "text/grammar_walk.h"

namespace moeflux {
namespace {

constexpr size_t kMaxMaskWork = 20'000'000;    // configurations that one mask may visit
constexpr size_t kMaxMaskSteps = 20'000'000;   // bytes of tokens that one mask may try
constexpr size_t kMaxFollowSteps = 2'000'000;  // of these, bytes that may be tried in callers one by one
constexpr size_t kMaxLocalStates = 1u << 16;
constexpr size_t kKeptLocalStates = 1u << 12;
constexpr uint32_t kAnyDepth = kNoNode - 1;
constexpr size_t kMaxTokenBytes = 4096;

uint32_t shared_prefix(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < most && a[n] == b[n]) ++n;
  return static_cast<uint32_t>(n);
}

void set_bit(std::span<uint64_t> mask, uint32_t token) { mask[token / 64] |= uint64_t{1} << (token % 64); }
bool has_bit(std::span<const uint64_t> mask, uint32_t token) {
  return (mask[token / 64] >> (token % 64)) & 1;
}

std::vector<std::string> matched_bytes(std::vector<std::string> tokens, std::span<const uint32_t> special,
                                       std::span<const uint32_t> ends) {
  for (const std::span<const uint32_t> ids : {special, ends})
    for (const uint32_t id : ids)
      if (id >= tokens.size())
        fail(Errc::InvalidArgument, "special token {} is outside the vocabulary of {}", id, tokens.size());
  for (std::string& token : tokens)
    if (token.find(static_cast<char>(kSpecialTokenByte)) != token.npos) token.clear();
  for (const uint32_t id : special)
    if (!tokens[id].empty()) tokens[id] = special_token_bytes(tokens[id]);
  for (const uint32_t id : ends) tokens[id].clear();
  for (size_t id = 0; id < tokens.size(); ++id)
    if (tokens[id].size() > kMaxTokenBytes)
      fail(Errc::InvalidArgument, "token {} has {} bytes, more than {}", id, tokens[id].size(),
           kMaxTokenBytes);
  return tokens;
}

std::vector<TokenTrie::Entry> trie_entries(const std::vector<std::string>& tokens) {
  std::vector<TokenTrie::Entry> entries;
  for (uint32_t id = 0; id < tokens.size(); ++id)
    if (!tokens[id].empty()) entries.push_back({tokens[id], id});
  return entries;
}

}  // namespace

std::string special_token_bytes(std::string_view content) {
  const std::string around(1, static_cast<char>(kSpecialTokenByte));
  return around + std::string(content) + around;
}

TokenTrie::TokenTrie(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.token < b.token;
  });
  nodes.push_back({});
  std::vector<uint32_t> path{0};  // nodes from the root to the last one
  const auto close_to = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back())
      nodes[path.back()].end = static_cast<uint32_t>(nodes.size());
  };
  std::string_view previous;
  for (const Entry& entry : entries) {
    close_to(shared_prefix(previous, entry.bytes));
    for (size_t depth = path.size(); depth <= entry.bytes.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes.size()));
      nodes.push_back({0, static_cast<uint32_t>(tokens.size()), static_cast<uint32_t>(depth),
                       static_cast<uint8_t>(entry.bytes[depth - 1])});
    }
    tokens.push_back(entry.token);
    max_depth = std::max(max_depth, static_cast<uint32_t>(entry.bytes.size()));
    previous = entry.bytes;
  }
  close_to(0);
  nodes[0].end = static_cast<uint32_t>(nodes.size());
  nodes.push_back({0, static_cast<uint32_t>(tokens.size()), 0, 0});
}

MaskVocabulary::MaskVocabulary(std::vector<std::string> tokens, std::span<const uint32_t> special,
                               std::span<const uint32_t> ends)
    : tokens_(matched_bytes(std::move(tokens), special, ends)),
      ends_(ends.begin(), ends.end()),
      trie_(trie_entries(tokens_)) {
  std::array<bool, 256> present{};
  for (const std::string& token : tokens_)
    if (token.size() == 1) present[static_cast<uint8_t>(token[0])] = true;
  for (size_t byte = 0; byte < kSpecialTokenByte; ++byte)
    if (!present[byte]) missing_bytes_.push_back(static_cast<uint8_t>(byte));
}

bool MaskVocabulary::is_end(uint32_t token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

namespace {

// A set of configurations above a frame that is not known: where they lead, byte by byte, is worked out once.
struct LocalState {
  std::vector<GrammarConfiguration> configurations;
  bool exits = false;   // the unknown frame can be popped here
  uint32_t height = 0;  // frames above the unknown one that are needed to be here and to come to an end
  std::array<uint32_t, 256> next;
};

constexpr uint32_t kUnknown = kNoNode;
constexpr uint32_t kDead = 0;

class LocalStates {
 public:
  LocalStates(const Grammar& grammar, const std::vector<GrammarFrame>& frames, uint32_t max_depth)
      : grammar_(grammar), walk_(grammar, frames, max_depth) {
    intern({});
  }

  void allow_work() {
    walk_.allow_work(kMaxMaskWork);
    steps_left_ = kMaxMaskSteps;
  }
  size_t size() const { return states_.size(); }
  const LocalState& operator[](uint32_t id) const { return *states_[id]; }

  uint32_t of(std::vector<GrammarConfiguration> configurations) {
    return intern({std::move(configurations), false});
  }

  uint32_t next(uint32_t from, uint8_t byte) {
    if (steps_left_-- == 0) fail(Errc::Unsupported, "the grammar is too ambiguous: a mask takes too long");
    const uint32_t known = states_[from]->next[byte];
    if (known != kUnknown) return known;
    const uint32_t to = intern(walk_.step(states_[from]->configurations, byte));
    states_[from]->next[byte] = to;
    return to;
  }

 private:
  uint32_t intern(GrammarStep step) {
    const uint64_t hash = hash_of(step);
    for (auto [it, end] = ids_.equal_range(hash); it != end; ++it) {
      const LocalState& state = *states_[it->second];
      if (state.exits == step.bottom && state.configurations == step.configurations) return it->second;
    }
    if (states_.size() == kMaxLocalStates)
      fail(Errc::Unsupported, "the grammar is too complex: one mask passes more than {} states",
           kMaxLocalStates);
    auto state = std::make_unique<LocalState>();
    state->exits = step.bottom;
    for (const GrammarConfiguration& configuration : step.configurations)
      state->height = std::max(state->height, walk_.frames()[configuration.frame].depth +
                                                  grammar_.nodes()[configuration.node].height);
    state->configurations = std::move(step.configurations);
    state->next.fill(kUnknown);
    states_.push_back(std::move(state));
    const auto id = static_cast<uint32_t>(states_.size() - 1);
    ids_.emplace(hash, id);
    return id;
  }

  static uint64_t hash_of(const GrammarStep& step) {
    uint64_t hash = step.bottom ? 0x9E3779B97F4A7C15u : 0;
    for (const GrammarConfiguration& c : step.configurations)
      hash = (hash ^ ((uint64_t{c.node} << 32) | c.frame)) * 0xD6E8FEB86659FD93u + (hash >> 29);
    return hash;
  }

  const Grammar& grammar_;
  GrammarWalk walk_;
  size_t steps_left_ = 0;
  std::vector<std::unique_ptr<LocalState>> states_;
  std::unordered_multimap<uint64_t, uint32_t> ids_;
};

// Walks all of a trie below a node from a local state. Calls visit(trie node, state) wherever bytes fit.
template <class Visit>
void walk_trie(const TokenTrie& trie, uint32_t top, LocalStates& states, uint32_t start, Visit&& visit) {
  const uint32_t top_depth = trie.nodes[top].depth;
  std::vector<uint32_t> path(trie.max_depth - top_depth + 1);
  path[0] = start;
  for (uint32_t i = top + 1; i < trie.nodes[top].end;) {
    const TokenTrie::Node& node = trie.nodes[i];
    const uint32_t depth = node.depth - top_depth;
    const uint32_t state = states.next(path[depth - 1], node.byte);
    if (state == kDead) {
      i = node.end;
      continue;
    }
    path[depth] = state;
    visit(i, states[state]);
    ++i;
  }
}

void set_tokens_of(const TokenTrie& trie, uint32_t node, std::span<uint64_t> mask) {
  for (uint32_t t = trie.nodes[node].first_token; t < trie.nodes[node + 1].first_token; ++t)
    set_bit(mask, trie.tokens[t]);
}

// What holds for a set of nodes whoever called their rule.
struct NodeSetMask {
  std::vector<uint64_t> accepted;
  std::vector<uint32_t> exits;         // trie nodes after which the rule may have ended
  std::unique_ptr<TokenTrie> leaving;  // what is left, after an exit, of tokens that are not accepted anyway
  uint32_t height = 0;                 // frames above the unknown one that this needs
  size_t size_bytes() const {
    return accepted.size() * 8 + exits.size() * 4 + (leaving ? leaving->size_bytes() : 0) + 200;
  }
};

NodeSetMask make_mask(const MaskVocabulary& vocabulary, LocalStates& states, uint32_t start) {
  NodeSetMask out;
  out.accepted.resize(vocabulary.n_words());
  out.height = states[start].height;
  const TokenTrie& trie = vocabulary.trie();
  walk_trie(trie, 0, states, start, [&](uint32_t node, const LocalState& state) {
    set_tokens_of(trie, node, out.accepted);
    out.height = std::max(out.height, state.height);
    if (state.exits && trie.nodes[node].end > node + 1) out.exits.push_back(node);
  });
  return out;
}

void make_leaving(const MaskVocabulary& vocabulary, NodeSetMask& mask) {
  const TokenTrie& trie = vocabulary.trie();
  std::vector<TokenTrie::Entry> entries;
  for (const uint32_t exit : mask.exits) {
    const uint32_t end = trie.nodes[trie.nodes[exit].end].first_token;
    for (uint32_t t = trie.nodes[exit + 1].first_token; t < end; ++t) {
      const uint32_t token = trie.tokens[t];
      if (!has_bit(mask.accepted, token))
        entries.push_back({vocabulary.bytes(token).substr(trie.nodes[exit].depth), token});
    }
  }
  mask.leaving = std::make_unique<TokenTrie>(std::move(entries));
}

struct NodeSetHash {
  size_t operator()(const std::vector<NodeId>& nodes) const {
    uint64_t hash = nodes.size();
    for (const NodeId node : nodes) hash = (hash ^ node) * 0x9E3779B97F4A7C15u + (hash >> 31);
    return static_cast<size_t>(hash);
  }
};

struct Group {  // the nodes of a state that stand above one frame
  uint32_t frame = 0;
  std::vector<GrammarConfiguration> nodes;
};

std::vector<Group> by_frame(const std::vector<GrammarConfiguration>& configurations) {
  std::vector<Group> groups;
  std::unordered_map<uint32_t, size_t> index;
  for (const GrammarConfiguration& c : configurations) {
    const auto [it, is_new] = index.try_emplace(c.frame, groups.size());
    if (is_new) groups.push_back({c.frame, {}});
    groups[it->second].nodes.push_back({c.node, 0});
  }
  return groups;
}

}  // namespace

// What was learnt about node sets, least recently used last, and the local states behind it.
class TokenMasker::Cache {
 public:
  Cache(const Grammar& grammar, const MaskVocabulary& vocabulary, size_t max_bytes)
      : grammar_(grammar),
        vocabulary_(vocabulary),
        max_bytes_(max_bytes),
        states_(std::make_unique<LocalStates>(grammar, GrammarState().frames(), kAnyDepth)) {}

  void fill(const GrammarState& state, std::span<uint64_t> mask) {
    ++stats.n_masks;
    if (states_->size() > kKeptLocalStates)
      states_ = std::make_unique<LocalStates>(grammar_, GrammarState().frames(), kAnyDepth);
    states_->allow_work();
    if (!fill_from_cache(state, mask)) fill_deep(state, mask);
    shrink();
  }

  TokenMaskStats stats;

 private:
  struct Entry {
    std::vector<NodeId> nodes;
    NodeSetMask mask;
  };

  // One mask's work on the callers of a state.
  struct Callers {
    GrammarWalk walk;
    size_t steps_left = kMaxFollowSteps;
    std::unordered_map<uint32_t, std::vector<Group>> after;  // frame -> where its callers go on
    std::unordered_set<uint64_t> followed;                   // (frame, trie node) of the trie at hand
  };

  // False where the limit of nesting may matter, which the cache knows nothing of, or where there are so many
  // callers that it is better to follow them all at once.
  bool fill_from_cache(const GrammarState& state, std::span<uint64_t> mask) {
    Callers callers{GrammarWalk(grammar_, state.frames(), kMaxGrammarDepth), kMaxFollowSteps, {}, {}};
    callers.walk.allow_work(kMaxMaskWork);
    for (const Group& group : by_frame(state.configurations())) {
      NodeSetMask& part = mask_of(group);
      if (state.frames()[group.frame].depth + part.height > kMaxGrammarDepth) return false;
      for (size_t i = 0; i < mask.size(); ++i) mask[i] |= part.accepted[i];
      if (group.frame == 0 || part.exits.empty()) continue;
      if (!part.leaving) {
        const size_t before = part.size_bytes();
        make_leaving(vocabulary_, part);
        stats.cache_bytes += part.size_bytes() - before;
      }
      callers.followed.clear();
      if (!follow(callers, group.frame, *part.leaving, 0, mask)) return false;
    }
    return true;
  }

  // Goes on in the caller of a frame with the bytes below a trie node.
  bool follow(Callers& callers, uint32_t frame, const TokenTrie& trie, uint32_t top,
              std::span<uint64_t> mask) {
    if (!callers.followed.insert((uint64_t{frame} << 32) | top).second) return true;
    auto found = callers.after.find(frame);
    if (found == callers.after.end())
      found = callers.after.emplace(frame, by_frame(callers.walk.after_frame(frame).configurations)).first;
    for (const Group& group : found->second) {
      const uint32_t depth = callers.walk.frames()[group.frame].depth;
      bool within = true;
      std::vector<uint32_t> exits;
      walk_trie(trie, top, *states_, states_->of(group.nodes), [&](uint32_t node, const LocalState& state) {
        set_tokens_of(trie, node, mask);
        within = within && depth + state.height <= kMaxGrammarDepth && callers.steps_left > 0;
        callers.steps_left -= within ? 1 : 0;
        if (state.exits && group.frame != 0 && trie.nodes[node].end > node + 1) exits.push_back(node);
      });
      if (!within) return false;
      for (const uint32_t exit : exits)
        if (!follow(callers, group.frame, trie, exit, mask)) return false;
    }
    return true;
  }

  // Without the cache, from the real frames: exact at any depth, and each byte of a token is tried once.
  void fill_deep(const GrammarState& state, std::span<uint64_t> mask) {
    ++stats.n_deep;
    std::fill(mask.begin(), mask.end(), 0);
    LocalStates states(grammar_, state.frames(), kMaxGrammarDepth);
    states.allow_work();
    walk_trie(vocabulary_.trie(), 0, states, states.of(state.configurations()),
              [&](uint32_t node, const LocalState&) { set_tokens_of(vocabulary_.trie(), node, mask); });
  }

  NodeSetMask& mask_of(const Group& group) {
    std::vector<NodeId> key;
    for (const GrammarConfiguration& c : group.nodes)
      key.push_back(grammar_.stand_in(c.node, vocabulary_.trie().max_depth));
    std::sort(key.begin(), key.end());
    key.erase(std::unique(key.begin(), key.end()), key.end());
    const auto found = index_.find(key);
    if (found != index_.end()) {
      ++stats.n_hits;
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front().mask;
    }
    ++stats.n_misses;
    std::vector<GrammarConfiguration> nodes;
    for (const NodeId node : key) nodes.push_back({node, 0});
    entries_.push_front({key, make_mask(vocabulary_, *states_, states_->of(std::move(nodes)))});
    stats.cache_bytes += entries_.front().mask.size_bytes();
    index_.emplace(std::move(key), entries_.begin());
    return entries_.front().mask;
  }

  void shrink() {
    while (stats.cache_bytes > max_bytes_ && entries_.size() > 1) {
      stats.cache_bytes -= entries_.back().mask.size_bytes();
      index_.erase(entries_.back().nodes);
      entries_.pop_back();
    }
  }

  const Grammar& grammar_;
  const MaskVocabulary& vocabulary_;
  const size_t max_bytes_;
  std::unique_ptr<LocalStates> states_;
  std::list<Entry> entries_;
  std::unordered_map<std::vector<NodeId>, std::list<Entry>::iterator, NodeSetHash> index_;
};

TokenMasker::TokenMasker(std::shared_ptr<const Grammar> grammar,
                         std::shared_ptr<const MaskVocabulary> vocabulary, size_t max_cache_bytes)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      cache_(std::make_unique<Cache>(*grammar_, *vocabulary_, max_cache_bytes)) {}

TokenMasker::~TokenMasker() = default;

const TokenMaskStats& TokenMasker::stats() const { return cache_->stats; }

bool TokenMasker::fill(const GrammarState& state, std::span<uint64_t> mask) {
  check(mask.size() == vocabulary_->n_words(), "the mask has as many words as the vocabulary needs");
  std::fill(mask.begin(), mask.end(), 0);
  cache_->fill(state, mask);
  if (state.accepting())
    for (const uint32_t end : vocabulary_->ends()) set_bit(mask, end);
  return std::any_of(mask.begin(), mask.end(), [](uint64_t word) { return word != 0; });
}

uint64_t TokenMasker::bytes_to_end(const GrammarState& state) {
  if (!ending_) ending_.emplace(*grammar_);
  return ending_->bytes(state);
}

bool TokenMasker::fill_to_end(const GrammarState& state, std::span<uint64_t> mask) {
  const TokenTrie& trie = vocabulary_->trie();
  if (!fill(state, mask)) return false;
  if (bytes_to_end(state) == 0) {  // and something may follow: an end, where the vocabulary has one
    if (vocabulary_->ends().empty()) return true;
    std::fill(mask.begin(), mask.end(), 0);
    for (const uint32_t end : vocabulary_->ends()) set_bit(mask, end);
    return true;
  }
  std::vector<uint64_t> shortest(mask.size(), 0);
  uint32_t at = 0;
  for (const char c : ending_->text(state, trie.max_depth)) {
    uint32_t child = at + 1;
    while (child < trie.nodes[at].end && trie.nodes[child].byte != static_cast<uint8_t>(c))
      child = trie.nodes[child].end;
    if (child >= trie.nodes[at].end) break;
    at = child;
    set_tokens_of(trie, at, shortest);
  }
  bool any = false;
  for (size_t i = 0; i < mask.size(); ++i) any |= (shortest[i] &= mask[i]) != 0;
  if (any) std::copy(shortest.begin(), shortest.end(), mask.begin());
  return true;
}

bool TokenMasker::advance(GrammarState& state, uint32_t token) const {
  if (token >= vocabulary_->size()) return false;
  if (vocabulary_->is_end(token)) {
    if (!state.accepting()) return false;
    state = GrammarState();
    return true;
  }
  const std::string_view bytes = vocabulary_->bytes(token);
  return !bytes.empty() && grammar_->advance(state, bytes);
}

}  // namespace moeflux
