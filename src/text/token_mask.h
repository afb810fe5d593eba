// Which tokens may follow: masks over a vocabulary for the states of a grammar.
//
// The vocabulary is a trie, walked once per set of grammar nodes: whether a token stays inside the rule at
// hand does not depend on the callers, so that result is kept. Only tokens that leave the rule are looked at
// again for the callers of the moment.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_ending.h"

namespace moeflux {

// Byte strings in order, as a tree laid out depth first: node i is followed by its children, up to `end`.
struct TokenTrie {
  struct Node {
    uint32_t end = 0;          // index after the last descendant
    uint32_t first_token = 0;  // tokens of i: tokens[nodes[i].first_token .. nodes[i + 1].first_token)
    uint32_t depth = 0;
    uint8_t byte = 0;
  };
  struct Entry {
    std::string_view bytes;
    uint32_t token = 0;
  };
  explicit TokenTrie(std::vector<Entry> entries);  // bytes must not be empty

  std::vector<Node> nodes;  // nodes[0] is the root; one more than there are nodes, as an end
  std::vector<uint32_t> tokens;
  uint32_t max_depth = 0;
  size_t n_nodes() const { return nodes.size() - 1; }
  size_t size_bytes() const { return nodes.size() * sizeof(Node) + tokens.size() * sizeof(uint32_t); }
};

// What a grammar has where it wants the special token with this content. No text has such bytes, so that text
// cannot spell the token, and the token cannot stand for text.
std::string special_token_bytes(std::string_view content);
inline constexpr uint8_t kSpecialTokenByte = 0xFF;  // around the content; in no UTF-8

// The tokens of a model, made once. Immutable; may be shared by threads.
class MaskVocabulary {
 public:
  // tokens[id]: the bytes that id stands for; empty where it stands for none. Special tokens match only their
  // special_token_bytes(); those that end the text are never part of a match, whatever their bytes.
  MaskVocabulary(std::vector<std::string> tokens, std::span<const uint32_t> special,
                 std::span<const uint32_t> ends);

  size_t size() const { return tokens_.size(); }
  size_t n_words() const { return (tokens_.size() + 63) / 64; }  // of a mask
  bool is_end(uint32_t token) const;
  // What it matches; empty for end tokens.
  std::string_view bytes(uint32_t token) const { return tokens_[token]; }
  const std::vector<uint32_t>& ends() const { return ends_; }
  const TokenTrie& trie() const { return trie_; }
  // Bytes of text that no token consists of alone. If there are any, a state can be without a token that
  // fits.
  const std::vector<uint8_t>& missing_bytes() const { return missing_bytes_; }

 private:
  std::vector<std::string> tokens_;
  std::vector<uint32_t> ends_;
  TokenTrie trie_;
  std::vector<uint8_t> missing_bytes_;
};

struct TokenMaskStats {
  uint64_t n_masks = 0;    // asked for
  uint64_t n_hits = 0;     // node sets whose part was known
  uint64_t n_misses = 0;   // and was not
  uint64_t n_deep = 0;     // masks worked out without the cache: deep nesting, or many callers
  size_t cache_bytes = 0;  // held now
};

// Masks for one grammar and one vocabulary, with what it has learnt so far. For one thread at a time.
class TokenMasker {
 public:
  TokenMasker(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const MaskVocabulary> vocabulary,
              size_t max_cache_bytes = size_t{64} << 20);
  ~TokenMasker();

  GrammarState start() const { return grammar_->start(); }

  // Sets bit t % 64 of mask[t / 64] for each token t that may follow, and clears all others; mask has
  // n_words() words. False where no token may follow: the text is finished, or the vocabulary lacks bytes.
  bool fill(const GrammarState& state, std::span<uint64_t> mask);
  // The same, but only the tokens that lead on a shortest way to the end of the text, counted in bytes: what
  // to do once an answer must come to its end. From then on it takes at most bytes_to_end() tokens and an end
  // token, unless the vocabulary lacks bytes: where none of its tokens leads there, this is fill().
  bool fill_to_end(const GrammarState& state, std::span<uint64_t> mask);
  uint64_t bytes_to_end(const GrammarState& state);

  // Moves on by a token; false where it may not follow, and the state is as it was. An end token leads to a
  // state after which nothing may follow.
  bool advance(GrammarState& state, uint32_t token) const;

  const Grammar& grammar() const { return *grammar_; }
  const MaskVocabulary& vocabulary() const { return *vocabulary_; }
  const TokenMaskStats& stats() const;

 private:
  class Cache;
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const MaskVocabulary> vocabulary_;
  std::unique_ptr<Cache> cache_;
  std::optional<GrammarEnding> ending_;  // once it was asked for
};

}  // namespace moeflux
