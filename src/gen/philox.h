// The random numbers of sampling: Philox4x32 with ten rounds (Salmon and others, 2011). It has no state: four
// words follow from a key and a counter by integer arithmetic alone, so that any position can be drawn on its
// own, in any order and on any device, with the same bits.
#pragma once

#include <array>
#include <cstdint>

namespace moeflux {

using PhiloxWords = std::array<uint32_t, 4>;

constexpr PhiloxWords philox(PhiloxWords counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t{0xD2511F53} * counter[0], odd = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(odd),
               static_cast<uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(even)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// What one position of a text needs: 64 bits for the choice of the token, 32 for whether XTC acts.
struct PositionDraw {
  uint64_t token;
  uint32_t xtc;
};

// Key: the seed; counter: the position, low word first. The last two words of the counter are zero.
constexpr PositionDraw draw_at(uint64_t seed, uint64_t position) {
  const PhiloxWords words =
      philox({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {uint64_t{words[1]} << 32 | words[0], words[2]};
}

}  // namespace moeflux
