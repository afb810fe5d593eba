// Byte-pair encoding of one piece of text: it starts as single bytes (or characters) and the adjacent pair of
// the lowest rank is merged, the leftmost first, until no pair is left that has a merge.
//
// Most pieces are a token as they stand, and most have been seen just before. Whether a token's own bytes are
// merged to it does not depend on anything else, so that it is remembered per token once it has been seen: a
// piece that is such a token costs one look-up. This memory is a few atomic bits that only ever hold true
// answers; encoding is safe from any number of threads.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace moeflux {

struct BpeOptions {
  bool ignore_merges = false;  // a piece that is a token is that token
  bool byte_fallback =
      false;  // characters that are no tokens become the tokens <0x00> to <0xFF> of their bytes
  bool fuse_unknown = false;  // one unknown token for several unknown characters
  std::string unknown;        // spelling; empty: unknown characters are left out, as the reference does
};

class Bpe {
 public:
  // Reads the merges at the reader's place: strings "a b" or pairs ["a", "b"], the first of rank 0.
  Bpe(Vocabulary vocabulary, BpeOptions options, JsonReader& merges, const std::string& where);
  ~Bpe();
  Bpe(Bpe&&) noexcept;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  size_t n_merges() const { return n_merges_; }

  // Memory for one thread's work, and what it encoded lately.
  struct Scratch {
    struct Recent {
      TokenKey piece;
      uint32_t n_ids = 0;  // 0: nothing is here
      std::array<Token, 3> ids{};
    };
    struct Symbol {
      Token id;
      uint32_t previous, next;
      bool alive;
    };
    struct Candidate {
      uint32_t rank, position;
      Token product;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
    std::vector<Token> ids;
    std::vector<Recent> recent;  // by the hash of the piece; empty until remember_pieces()
  };
  // Worth its memory for a text of some thousand bytes or more.
  static void remember_pieces(Scratch& scratch) { scratch.recent.resize(kRecentPieces); }
  void encode(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const;

 private:
  struct Merge {
    uint32_t rank;
    Token product;
  };
  struct Slot {
    Token first, second;
    Merge merge;
  };
  enum State : uint8_t { kUnseen, kWhole, kSplit };  // what a token's own bytes are merged to

  static constexpr uint32_t kNoRank = UINT32_MAX;
  static constexpr size_t kRecentPieces = 1 << 13;  // of 32 bytes each: they stay in a core's own cache

  void read_merges(JsonReader& reader, const std::string& where);
  void add_merge(std::string_view first, std::string_view second, const std::string& where);
  Token known(Token id, std::string_view spelling, const std::string& where) const;
  bool stands_in(Token id) const;
  void insert(Token first, Token second, Merge merge);
  void grow();
  Merge merge_of(Token first, Token second) const;
  void note_joined_characters(std::string_view first, std::string_view second);

  void encode_unbroken(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const;
  void encode_new(const TokenKey& key, std::string_view piece, Scratch& scratch,
                  std::vector<Token>& out) const;
  bool may_join(uint32_t first, uint32_t second) const;
  bool is_boundary(uint32_t first, uint32_t second) const;
  Token symbol_of(uint32_t code_point) const;
  void split(std::string_view piece, std::vector<Token>& ids) const;
  bool fall_back(std::string_view character, std::vector<Token>& ids) const;
  size_t merge_few(Token* ids, size_t n) const;
  size_t merge_many(std::vector<Token>& ids, Scratch& scratch) const;
  void push_candidate(Scratch& scratch, uint32_t position) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  size_t n_merges_ = 0;
  std::vector<Slot> slots_;
  size_t n_slots_used_ = 0;
  std::array<Token, 256> byte_symbols_{};      // byte-level: of each byte; else: of each ASCII character
  std::array<Token, 256> fallback_symbols_{};  // of <0x00> to <0xFF>
  Token unknown_ = kNoToken;
  std::unique_ptr<std::atomic<uint8_t>[]> states_;
  // Pairs of characters that stand side by side in some merged token, as bits by a hash: a text may be cut
  // between two characters that never do. Only for vocabularies of characters, whose pieces can be whole
  // documents.
  std::vector<uint64_t> joined_;
};

}  // namespace moeflux
