#include "text/bpe.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "text/json_reader.h"
#include "text/utf8.h"

namespace moeflux {
namespace {

constexpr size_t kFew = 48;  // symbols of a piece up to which a plain search for the lowest rank is fastest
constexpr uint64_t kJoinedBits = 1 << 20;
constexpr uint64_t kMix = 0x9E3779B97F4A7C15;

uint64_t mix(uint64_t first, uint64_t second) {
  const uint64_t product = (first << 32 | second) * kMix;
  return product ^ product >> 32;
}

bool is_after(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, BpeOptions options, JsonReader& merges, const std::string& where)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      slots_(1024, Slot{kNoToken, 0, {kNoRank, 0}}),
      states_(std::make_unique<std::atomic<uint8_t>[]>(vocabulary_.end_id())) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(static_cast<unsigned char>(byte));
    const bool is_symbol = vocabulary_.byte_level() || byte < 0x80;
    byte_symbols_[byte] = is_symbol ? vocabulary_.find(std::string_view(&character, 1)) : kNoToken;
    fallback_symbols_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
  }
  if (!options_.unknown.empty()) {
    unknown_ = vocabulary_.find_spelling(options_.unknown);
    if (unknown_ == kNoToken)
      fail(Errc::Corrupt, "{}: the unknown token '{}' is not in the vocabulary", where, options_.unknown);
  }
  if (vocabulary_.byte_level() && options_.byte_fallback &&
      std::find(byte_symbols_.begin(), byte_symbols_.end(), kNoToken) != byte_symbols_.end())
    fail(Errc::Unsupported, "{}: byte_fallback for a byte-level vocabulary that lacks bytes is not supported",
         where);
  if (!vocabulary_.byte_level()) joined_.resize(kJoinedBits / 64);
  read_merges(merges, where);
}

Bpe::~Bpe() = default;
Bpe::Bpe(Bpe&&) noexcept = default;

void Bpe::read_merges(JsonReader& reader, const std::string& where) {
  std::string first, second;
  reader.array([&] {
    if (reader.take('[')) {
      first = reader.string();
      reader.expect(',');
      second = reader.string();
      reader.expect(']');
    } else {
      const std::string_view both = reader.string();
      const size_t space = both.find(' ');
      if (n_merges_ == 0 && both.starts_with("#version")) return;
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos)
        fail(Errc::Corrupt, "{}: the merge '{}' is not two tokens with a space between them", where, both);
      first = both.substr(0, space);
      second = both.substr(space + 1);
    }
    add_merge(first, second, where);
  });
}

Token Bpe::known(Token id, std::string_view spelling, const std::string& where) const {
  if (id == kNoToken)
    fail(Errc::Corrupt, "{}: merge {}: the token '{}' is not in the vocabulary", where, n_merges_, spelling);
  return id;
}

// Whether a token takes the place of characters that are not in the vocabulary.
bool Bpe::stands_in(Token id) const {
  if (id == unknown_) return true;
  return options_.byte_fallback && vocabulary_.bytes(id).size() == 6 &&
         std::find(fallback_symbols_.begin(), fallback_symbols_.end(), id) != fallback_symbols_.end();
}

void Bpe::add_merge(std::string_view first, std::string_view second, const std::string& where) {
  std::string left, right;
  if (!vocabulary_.byte_level()) {
    left = first;
    right = second;
  } else if (!bytes_of_spelling(first, left) || !bytes_of_spelling(second, right)) {
    known(vocabulary_.find_spelling(first), first, where);
    known(vocabulary_.find_spelling(second), second, where);
    ++n_merges_;  // it keeps its rank, but text is never mapped to such tokens
    return;
  }
  const Token a = known(vocabulary_.find(left), first, where);
  const Token b = known(vocabulary_.find(right), second, where);
  if (!joined_.empty()) note_joined_characters(left, right);
  left += right;
  const Token product = vocabulary_.find(left);
  if (product == kNoToken) known(product, std::string(first).append(second), where);
  if (stands_in(a) || stands_in(b))
    fail(Errc::Unsupported, "{}: merge {} is of a token for what is unknown, which is not supported", where,
         n_merges_);
  insert(a, b, {static_cast<uint32_t>(n_merges_++), product});
}

// Characters inside the two were noted with the merges that made them.
void Bpe::note_joined_characters(std::string_view first, std::string_view second) {
  if (first.empty() || second.empty()) return;
  const char *last = previous_character(first.data() + first.size()), *next = second.data();
  const uint64_t bit = mix(next_code_point(last), next_code_point(next)) % kJoinedBits;
  joined_[bit / 64] |= uint64_t{1} << bit % 64;
}

bool Bpe::may_join(uint32_t first, uint32_t second) const {
  const uint64_t bit = mix(first, second) % kJoinedBits;
  return (joined_[bit / 64] >> bit % 64 & 1) != 0;
}

void Bpe::insert(Token first, Token second, Merge merge) {
  if (3 * (n_slots_used_ + 1) > 2 * slots_.size()) grow();
  size_t at = mix(first, second) & (slots_.size() - 1);
  while (slots_[at].first != kNoToken && !(slots_[at].first == first && slots_[at].second == second))
    at = (at + 1) & (slots_.size() - 1);
  n_slots_used_ += slots_[at].first == kNoToken;
  slots_[at] = {first, second, merge};  // of two merges of one pair the last counts, as in the reference
}

void Bpe::grow() {
  const std::vector<Slot> old = std::move(slots_);
  slots_.assign(old.size() * 2, Slot{kNoToken, 0, {kNoRank, 0}});
  n_slots_used_ = 0;
  for (const Slot& slot : old)
    if (slot.first != kNoToken) insert(slot.first, slot.second, slot.merge);
}

Bpe::Merge Bpe::merge_of(Token first, Token second) const {
  for (size_t at = mix(first, second) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.first == first && slot.second == second) return slot.merge;
    if (slot.first == kNoToken) return {kNoRank, 0};
  }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const {
  if (piece.empty()) return;
  if (joined_.empty()) return encode_unbroken(piece, scratch, out);
  if (options_.ignore_merges) {
    if (const Token whole = vocabulary_.find(piece); whole != kNoToken) {
      out.push_back(whole);
      return;
    }
  }
  const char *at = piece.data(), *const end = at + piece.size();
  const char* begin = at;
  for (uint32_t previous = next_code_point(at); at != end;) {
    const char* const here = at;
    const uint32_t point = next_code_point(at);
    if (!may_join(previous, point) && is_boundary(previous, point)) {
      encode_unbroken({begin, static_cast<size_t>(here - begin)}, scratch, out);
      begin = here;
    }
    previous = point;
  }
  encode_unbroken({begin, static_cast<size_t>(end - begin)}, scratch, out);
}

// No merge joins these two. Unknown characters stay together all the same: they may become one token.
bool Bpe::is_boundary(uint32_t first, uint32_t second) const {
  return symbol_of(first) != kNoToken && symbol_of(second) != kNoToken;
}

Token Bpe::symbol_of(uint32_t code_point) const {
  if (code_point < 0x80) return byte_symbols_[code_point];
  std::string character;
  append_utf8(character, code_point);
  return vocabulary_.find(character);
}

void Bpe::encode_unbroken(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const {
  const TokenKey key = TokenKey::of(piece);
  if (scratch.recent.empty() || !key.is_inline()) return encode_new(key, piece, scratch, out);
  Scratch::Recent& recent = scratch.recent[key.hash() % kRecentPieces];
  if (recent.piece == key && recent.n_ids != 0) {
    out.insert(out.end(), recent.ids.begin(), recent.ids.begin() + recent.n_ids);
    return;
  }
  const size_t before = out.size();
  encode_new(key, piece, scratch, out);
  const size_t n_ids = out.size() - before;
  if (n_ids > recent.ids.size()) return;
  recent.piece = key;
  recent.n_ids = static_cast<uint32_t>(n_ids);
  std::copy(out.begin() + static_cast<ptrdiff_t>(before), out.end(), recent.ids.begin());
}

void Bpe::encode_new(const TokenKey& key, std::string_view piece, Scratch& scratch,
                     std::vector<Token>& out) const {
  const Token whole = vocabulary_.find(key, piece);
  if (whole != kNoToken) {
    if ((options_.ignore_merges && vocabulary_.byte_level()) ||
        states_[whole].load(std::memory_order_relaxed) == kWhole) {
      out.push_back(whole);
      return;
    }
  }
  std::vector<Token>& ids = scratch.ids;
  ids.clear();
  split(piece, ids);
  const size_t n = ids.size() <= kFew ? merge_few(ids.data(), ids.size()) : merge_many(ids, scratch);
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n));
  if (whole != kNoToken)
    states_[whole].store(n == 1 && ids[0] == whole ? kWhole : kSplit, std::memory_order_relaxed);
}

// Unknown characters wait until it is clear whether more of them follow; bytes of others that come meanwhile
// go first. This order is the reference's.
void Bpe::split(std::string_view piece, std::vector<Token>& ids) const {
  const char *at = piece.data(), *const end = at + piece.size();
  bool unknown_waits = false;
  while (at != end) {
    const char* const begin = at;
    const Token symbol = vocabulary_.byte_level() ? byte_symbols_[static_cast<unsigned char>(*at++)]
                                                  : symbol_of(next_code_point(at));
    if (symbol != kNoToken) {
      if (unknown_waits) ids.push_back(unknown_);
      unknown_waits = false;
      ids.push_back(symbol);
    } else if (!fall_back({begin, static_cast<size_t>(at - begin)}, ids) && unknown_ != kNoToken) {
      if (unknown_waits && !options_.fuse_unknown) ids.push_back(unknown_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) ids.push_back(unknown_);
}

bool Bpe::fall_back(std::string_view character, std::vector<Token>& ids) const {
  if (!options_.byte_fallback) return false;
  for (const char c : character)
    if (fallback_symbols_[static_cast<unsigned char>(c)] == kNoToken) return false;
  for (const char c : character) ids.push_back(fallback_symbols_[static_cast<unsigned char>(c)]);
  return true;
}

// Looks for the lowest rank over and over. Returns how many symbols are left.
size_t Bpe::merge_few(Token* ids, size_t n) const {
  std::array<Merge, kFew> merges;  // of each symbol with the one after it
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = merge_of(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].rank == kNoRank) break;
    ids[best] = merges[best].product;
    std::copy(ids + best + 2, ids + n, ids + best + 1);
    std::copy(merges.begin() + static_cast<ptrdiff_t>(best) + 1,
              merges.begin() + static_cast<ptrdiff_t>(n) - 1, merges.begin() + static_cast<ptrdiff_t>(best));
    --n;
    if (best > 0) merges[best - 1] = merge_of(ids[best - 1], ids[best]);
    if (best + 1 < n) merges[best] = merge_of(ids[best], ids[best + 1]);
  }
  return n;
}

// The same with a queue, for long pieces. A queue entry is outdated if its pair has another product by now.
size_t Bpe::merge_many(std::vector<Token>& ids, Scratch& scratch) const {
  const auto n = static_cast<uint32_t>(ids.size());
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  symbols.clear();
  queue.clear();
  for (uint32_t i = 0; i < n; ++i) symbols.push_back({ids[i], i - 1, i + 1, true});
  for (uint32_t i = 0; i + 1 < n; ++i)
    if (const Merge merge = merge_of(ids[i], ids[i + 1]); merge.rank != kNoRank)
      queue.push_back({merge.rank, i, merge.product});
  std::make_heap(queue.begin(), queue.end(), is_after);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), is_after);
    const Scratch::Candidate top = queue.back();
    queue.pop_back();
    Scratch::Symbol& left = symbols[top.position];
    if (!left.alive || left.next == n) continue;
    Scratch::Symbol& right = symbols[left.next];
    const Merge merge = merge_of(left.id, right.id);
    if (merge.rank == kNoRank || merge.product != top.product) continue;
    left.id = top.product;
    left.next = right.next;
    right.alive = false;
    if (left.next != n) symbols[left.next].previous = top.position;
    if (top.position != 0) push_candidate(scratch, left.previous);
    push_candidate(scratch, top.position);
  }
  ids.clear();
  for (const Scratch::Symbol& symbol : symbols)
    if (symbol.alive) ids.push_back(symbol.id);
  return ids.size();
}

void Bpe::push_candidate(Scratch& scratch, uint32_t position) const {
  const Scratch::Symbol& left = scratch.symbols[position];
  if (left.next == scratch.symbols.size()) return;
  const Merge merge = merge_of(left.id, scratch.symbols[left.next].id);
  if (merge.rank == kNoRank) return;
  scratch.queue.push_back({merge.rank, position, merge.product});
  std::push_heap(scratch.queue.begin(), scratch.queue.end(), is_after);
}

}  // namespace moeflux
