// Matrices of every format with made-up content, for the tests of linear products.
#pragma once

#include <cstring>
#include <vector>

#include "base/matrix_format.h"
#include "base/numbers.h"

namespace moeflux {

inline float noise(uint32_t& state) {  // uniform in [-1, 1), from integers only
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
}

struct TestMatrix {
  TestMatrix(const MatrixFormat& f, size_t rows, size_t cols, uint32_t seed)
      : bytes(matrix_bytes(f, rows, cols)) {
    view = {bytes.data(), f, rows, cols};
    const size_t tiles = bytes.size() / f.tile_bytes();
    for (size_t t = 0; t < tiles; ++t) {
      std::byte* tile = bytes.data() + t * f.tile_bytes();
      for (size_t i = 0; i < f.tile_code_bytes(); ++i) {
        noise(seed);
        tile[i] = std::byte(seed >> 24 & (f.type == MatrixType::Fp8 ? 0xbe : 0xff));
      }
      if (f.type == MatrixType::F16)  // no infinities
        for (size_t i = 1; i < f.tile_code_bytes(); i += 2) tile[i] &= std::byte(0xbf);
      if (f.type == MatrixType::F32)
        for (size_t i = 0; i < f.tile_code_bytes(); i += 4) {
          const float v = noise(seed);
          std::memcpy(tile + i, &v, 4);
        }
      if (f.type == MatrixType::Bf16)
        for (size_t i = 0; i < f.tile_code_bytes(); i += 2) {
          const uint16_t v = float_to_bf16(noise(seed));
          std::memcpy(tile + i, &v, 2);
        }
      for (size_t i = 0; i < f.tile_groups() * kTileRows; ++i) {
        const float s = 0.01f + 0.005f * noise(seed);
        const float b = -s * (f.code_bits() == 4 ? 7.5f : 127.5f);  // zero mean, as weights have
        const uint16_t hs = float_to_bf16(s), hb = float_to_bf16(b);
        std::byte* at = tile + f.tile_code_bytes() + i * f.scale_bytes();
        if (f.scale == ScaleType::E8m0) *at = std::byte(120 + (seed >> 30));
        if (f.scale == ScaleType::F32) {
          std::memcpy(at, &s, 4);
          if (f.is_affine()) std::memcpy(at + f.tile_scale_bytes(), &b, 4);
        }
        if (f.scale == ScaleType::F16) {  // 2^-7 to 2^-6, and about -8 times that
          const auto hs16 = static_cast<uint16_t>(0x2000 | (seed >> 22 & 0x3ff)),
                     hb16 = static_cast<uint16_t>(hs16 + 0x8c00);
          std::memcpy(at, &hs16, 2), std::memcpy(at + f.tile_scale_bytes(), &hb16, 2);
        }
        if (f.scale == ScaleType::Bf16)
          std::memcpy(at, &hs, 2), std::memcpy(at + f.tile_scale_bytes(), &hb, 2);
      }
    }
  }
  std::vector<std::byte> bytes;
  MatrixView view;
};

inline std::vector<MatrixFormat> test_formats() {
  std::vector<MatrixFormat> formats = {
      MatrixFormat::mxfp4(), MatrixFormat::fp8(), MatrixFormat::plain(MatrixType::Bf16),
      MatrixFormat::plain(MatrixType::F16), MatrixFormat::plain(MatrixType::F32)};
  for (const int bits : {4, 8})
    for (const uint16_t group : {uint16_t{32}, uint16_t{64}, uint16_t{128}})
      for (const ScaleType scale : {ScaleType::Bf16, ScaleType::F16, ScaleType::F32})
        formats.push_back(MatrixFormat::affine(bits, group, scale));
  return formats;
}

}  // namespace moeflux
