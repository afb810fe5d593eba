// The bytes of a token as two words: up to 15 bytes are the key itself, so that comparing two keys is
// comparing the bytes; longer ones are a hash, and who finds an equal key must look at the bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace moeflux {

struct TokenKey {
  static constexpr size_t kMaxInline = 15;
  static constexpr uint64_t kLong = 0xFF;

  uint64_t low = 0, high = 0;  // the highest byte is the length, or kLong

  static TokenKey of(std::string_view bytes) {
    const char* const at = bytes.data();
    const size_t n = bytes.size();
    if (n > kMaxInline) return {hash_of(bytes), kLong << 56};
    const uint64_t length = static_cast<uint64_t>(n) << 56;
    if (n > 8) return {load8(at), load8(at + n - 8) >> 8 * (16 - n) | length};  // loads that overlap
    if (n == 8) return {load8(at), length};
    if (n >= 4) return {load4(at) | load4(at + n - 4) << 8 * (n - 4), length};
    if (n == 0) return {0, length};
    const auto byte = [at](size_t i) {
      return static_cast<uint64_t>(static_cast<unsigned char>(at[i])) << 8 * i;
    };
    return {byte(0) | byte(n / 2) | byte(n - 1), length};
  }

  bool is_inline() const { return high >> 56 != kLong; }
  bool operator==(const TokenKey& other) const { return low == other.low && high == other.high; }
  uint64_t hash() const { return fold(low ^ kFirst, high ^ kSecond); }

 private:
  static constexpr uint64_t kFirst = 0x9E3779B97F4A7C15, kSecond = 0xD6E8FEB86659FD93;

  static uint64_t load8(const char* at) {
    uint64_t value;
    std::memcpy(&value, at, 8);
    return value;
  }
  static uint64_t load4(const char* at) {
    uint32_t value;
    std::memcpy(&value, at, 4);
    return value;
  }
  static uint64_t fold(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  static uint64_t hash_of(std::string_view bytes) {  // of at least 8
    uint64_t state = kFirst ^ bytes.size();
    for (size_t at = 0; at + 8 < bytes.size(); at += 8)
      state = fold(state ^ load8(bytes.data() + at), kSecond);
    return fold(state ^ load8(bytes.data() + bytes.size() - 8), kFirst);
  }
};

}  // namespace moeflux
