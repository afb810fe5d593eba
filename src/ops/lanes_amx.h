// AVX-512 lanes, and AMX tiles for the products of many vectors: a span of 64 columns of a row block is one
// tile as it lies in memory, so that 16 vectors meet 16 rows in one instruction. The sums are the same
// integers.
#pragma once

#include "ops/lanes_avx512.h"

#define MOEFLUX_TILES 1

namespace moeflux::MOEFLUX_ISA {
namespace {

// Tiles 0: sums [16 vectors][16 rows]; 1: 16 vectors x 64 bytes; 2: 16 lines of codes; 3 and 4: half of
// these.
class TileSetup {
 public:
  TileSetup() {
    alignas(64) uint8_t config[64] = {1};
    const auto tile = [&](int i, uint8_t rows, uint8_t bytes) {
      config[16 + 2 * i] = bytes;
      config[48 + i] = rows;
    };
    tile(0, 16, 64), tile(1, 16, 64), tile(2, 16, 64), tile(3, 16, 32), tile(4, 8, 64);
    _tile_loadconfig(config);
  }
  ~TileSetup() { _tile_release(); }
};

// sums[v][r] = the sum of unpacked code * q over the columns of lines [first, first + Lines); q: 16 vectors
// of 64 bytes.
template <int Lines>
inline void multiply_tiles(const I* lines, int first, const int8_t* q, int32_t* sums) {
  _tile_zero(0);
  if constexpr (Lines == 16) {
    _tile_loadd(1, q, 64);
    _tile_loadd(2, lines, 64);
    _tile_dpbsud(0, 1, 2);
  } else {
    _tile_loadd(3, q + 4 * first, 64);
    _tile_loadd(4, lines + first, 64);
    _tile_dpbsud(0, 3, 4);
  }
  _tile_stored(0, sums, 64);
}

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
