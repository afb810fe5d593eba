#include "text/vocabulary.h"

#include "base/error.h"
#include "text/json_reader.h"
#include "text/utf8.h"

namespace moeflux {
namespace {

constexpr uint32_t kAlphabetEnd = 0x144;  // 256 bytes, of which 68 are spelled from U+0100 on

// Bytes that look like something are spelled as the Latin-1 character of their value.
bool is_spelled_as_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

std::array<int16_t, kAlphabetEnd> make_alphabet() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte)
    bytes[is_spelled_as_itself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return bytes;
}

}  // namespace

bool bytes_of_spelling(std::string_view spelling, std::string& bytes) {
  static const std::array<int16_t, kAlphabetEnd> alphabet = make_alphabet();
  bytes.clear();
  const char *at = spelling.data(), *const end = at + spelling.size();
  while (at != end) {
    const uint32_t point = next_code_point(at);
    if (point >= kAlphabetEnd || alphabet[point] < 0) return false;
    bytes += static_cast<char>(static_cast<unsigned char>(alphabet[point]));
  }
  return true;
}

Vocabulary::Vocabulary(JsonReader& reader, bool byte_level, const std::string& where)
    : byte_level_(byte_level), slots_(1024) {
  reader.object([&](std::string_view spelling) { add(spelling, reader.number(), where); });
}

void Vocabulary::add(std::string_view spelling, uint64_t id, const std::string& where) {
  if (id > kMaxToken)
    fail(Errc::Corrupt, "{}: the token '{}' has the id {}, more than {}", where, spelling, id, kMaxToken);
  if (tokens_.size() <= id) tokens_.resize(id + 1, Span{kAbsent, 0});
  if (tokens_[id].begin != kAbsent)
    fail(Errc::Corrupt, "{}: two tokens have the id {}, one is '{}'", where, id, spelling);
  std::string bytes;
  const bool findable = !byte_level_ || bytes_of_spelling(spelling, bytes);
  const std::string_view stored = byte_level_ && findable ? std::string_view(bytes) : spelling;
  const TokenKey key = TokenKey::of(stored);
  const bool is_new = findable ? find(key, stored) == kNoToken
                               : literal_.try_emplace(std::string(spelling), static_cast<Token>(id)).second;
  if (!is_new) fail(Errc::Corrupt, "{}: the token '{}' stands twice", where, spelling);
  tokens_[id] = {static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(stored.size())};
  text_ += stored;
  ++n_tokens_;
  if (findable) insert(key, static_cast<Token>(id));
}

void Vocabulary::insert(const TokenKey& key, Token id) {
  if (3 * (n_slots_used_ + 1) > 2 * slots_.size()) grow();
  size_t at = key.hash() & (slots_.size() - 1);
  while (slots_[at].id != kNoToken) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {key, id};
  ++n_slots_used_;
}

void Vocabulary::grow() {
  const std::vector<Slot> old = std::move(slots_);
  slots_.assign(old.size() * 2, Slot());
  n_slots_used_ = 0;
  for (const Slot& slot : old)
    if (slot.id != kNoToken) insert(slot.key, slot.id);
}

Token Vocabulary::find(const TokenKey& key, std::string_view wanted) const {
  for (size_t at = key.hash() & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.id == kNoToken) return kNoToken;
    if (slot.key == key && (key.is_inline() || bytes(slot.id) == wanted)) return slot.id;
  }
}

Token Vocabulary::find_spelling(std::string_view spelling) const {
  std::string bytes;
  if (!byte_level_) return find(spelling);
  if (bytes_of_spelling(spelling, bytes)) return find(bytes);
  const auto found = literal_.find(std::string(spelling));
  return found == literal_.end() ? kNoToken : found->second;
}

}  // namespace moeflux
