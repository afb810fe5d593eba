#include "base/hash.h"

#include <xxhash.h>

#include <charconv>

#include "base/error.h"

namespace moeflux {

uint64_t xxh3(std::span<const std::byte> bytes) noexcept { return XXH3_64bits(bytes.data(), bytes.size()); }
uint64_t xxh3(std::string_view text) noexcept { return XXH3_64bits(text.data(), text.size()); }

Hasher::Hasher() : state_(XXH3_createState()) {
  if (!state_) fail(Errc::OutOfMemory, "no memory for a checksum");
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}
Hasher::~Hasher() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void Hasher::add(std::span<const std::byte> bytes) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}
uint64_t Hasher::digest() const noexcept { return XXH3_64bits_digest(static_cast<XXH3_state_t*>(state_)); }

std::string to_hex(uint64_t value) { return fmt::format("{:016x}", value); }

uint64_t from_hex(std::string_view text, std::string_view what) {
  uint64_t value = 0;
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || err != std::errc() || end != text.data() + 16)
    fail(Errc::Corrupt, "{}: '{}' is not a checksum of 16 hexadecimal digits", what, text);
  return value;
}

}  // namespace moeflux
