// xxh3-64, the checksum of everything in a package.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moeflux {

uint64_t xxh3(std::span<const std::byte> bytes) noexcept;
uint64_t xxh3(std::string_view text) noexcept;

// The same over bytes that come in pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void add(std::span<const std::byte> bytes) noexcept;
  void add(std::string_view text) noexcept { add(std::as_bytes(std::span(text))); }
  uint64_t digest() const noexcept;

 private:
  void* state_;
};

// Sixteen lower-case hexadecimal digits, and back; from_hex throws Error{Corrupt} naming `what`.
std::string to_hex(uint64_t value);
uint64_t from_hex(std::string_view text, std::string_view what);

}  // namespace moeflux
