#include "base/matrix_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/numbers.h"

namespace moeflux {
namespace {

std::vector<MatrixFormat> all_formats() {
  std::vector<MatrixFormat> formats = {
      MatrixFormat::plain(MatrixType::F32), MatrixFormat::plain(MatrixType::F16),
      MatrixFormat::plain(MatrixType::Bf16), MatrixFormat::mxfp4(), MatrixFormat::fp8()};
  for (const int bits : {4, 8})
    for (const uint16_t group : {uint16_t{32}, uint16_t{64}, uint16_t{128}})
      for (const ScaleType scale : {ScaleType::Bf16, ScaleType::F16, ScaleType::F32})
        formats.push_back(MatrixFormat::affine(bits, group, scale));
  return formats;
}

TEST(MatrixFormat, NamesGoBothWays) {
  for (const MatrixFormat& f : all_formats()) EXPECT_EQ(matrix_format_from_string(to_string(f), "test"), f);
  for (const char* bad : {"", "affine4", "affine4/g16/bf16", "affine5/g64/bf16", "q4"})
    EXPECT_THROW(matrix_format_from_string(bad, "test"), Error) << bad;
}

TEST(MatrixFormat, TilesHaveTheDocumentedSizes) {
  EXPECT_EQ(MatrixFormat::affine(4, 64).tile_bytes(), 576u);
  EXPECT_EQ(MatrixFormat::affine(4, 32).tile_bytes(), 640u);
  EXPECT_EQ(MatrixFormat::affine(4, 128).tile_bytes(), 1088u);
  EXPECT_EQ(MatrixFormat::affine(8, 64).tile_bytes(), 1088u);
  EXPECT_EQ(MatrixFormat::mxfp4().tile_bytes(), 544u);
  EXPECT_EQ(MatrixFormat::fp8().tile_bytes(), 2112u);
  EXPECT_EQ(MatrixFormat::plain(MatrixType::Bf16).tile_bytes(), 2048u);
  EXPECT_EQ(matrix_bytes(MatrixFormat::affine(4, 64), 17, 65), 2u * 2 * 576);
  EXPECT_THROW(matrix_bytes(MatrixFormat::affine(4, 64), UINT64_MAX / 2, UINT64_MAX / 2), Error);
}

// Every code, scale and bias of a matrix of several tiles comes back from where pack_tile put it.
TEST(MatrixFormat, EveryElementComesBack) {
  for (const MatrixFormat& f : all_formats()) {
    const size_t rows = 32, cols = 2 * f.tile_cols(), size = f.unpacked_bytes();
    const auto code = [&](size_t r, size_t c) {
      const auto x = static_cast<uint32_t>((r * 131 + c * 29) * 2654435761u);
      return f.code_bits() == 32 ? x & 0x3fffffff : x & ((1u << std::min<size_t>(f.code_bits(), 14)) - 1);
    };
    const auto raw_scale = [&](size_t r, size_t g) { return static_cast<uint32_t>(0x3c00 + r * 7 + g * 3); };
    std::vector<std::byte> bytes(matrix_bytes(f, rows, cols));
    for (size_t block = 0; block < 2; ++block)
      for (size_t t = 0; t < 2; ++t) {
        std::vector<std::byte> codes(kTileRows * f.tile_cols() * size), scales(f.tile_scale_bytes()),
            biases(scales);
        for (size_t r = 0; r < kTileRows; ++r) {
          for (size_t c = 0; c < f.tile_cols(); ++c) {
            const uint32_t value = code(block * 16 + r, t * f.tile_cols() + c);
            std::memcpy(&codes[(r * f.tile_cols() + c) * size], &value, size);
          }
          for (size_t g = 0; g < f.tile_groups(); ++g) {
            const uint32_t s = raw_scale(block * 16 + r, t * f.tile_groups() + g), b = s + 1;
            std::memcpy(&scales[(g * kTileRows + r) * f.scale_bytes()], &s, f.scale_bytes());
            std::memcpy(&biases[(g * kTileRows + r) * f.scale_bytes()], &b, f.scale_bytes());
          }
        }
        pack_tile(f, codes.data(), f.tile_cols() * size, scales.data(), biases.data(),
                  bytes.data() + (block * 2 + t) * f.tile_bytes());
      }
    const MatrixView m{bytes.data(), f, rows, cols};
    std::vector<float> row(cols);
    for (size_t r = 0; r < rows; ++r) {
      dequantise_row(m, r, row.data());
      for (size_t c = 0; c < cols; ++c) {
        ASSERT_EQ(code_at(m, r, c), code(r, c)) << to_string(f) << " " << r << "," << c;
        const float want =
            f.is_affine() ? scale_at(m, r, c) * static_cast<float>(code(r, c)) + bias_at(m, r, c)
            : f.type == MatrixType::Mxfp4 ? kE2m1[code(r, c)] * scale_at(m, r, c)
            : f.type == MatrixType::Fp8 ? e4m3_to_float(static_cast<uint8_t>(code(r, c))) * scale_at(m, r, c)
            : f.type == MatrixType::F32 ? std::bit_cast<float>(code(r, c))
            : f.type == MatrixType::F16 ? f16_to_float(static_cast<uint16_t>(code(r, c)))
                                        : bf16_to_float(static_cast<uint16_t>(code(r, c)));
        ASSERT_TRUE(row[c] == want || (std::isnan(row[c]) && std::isnan(want)))
            << to_string(f) << " " << r << "," << c;
      }
      for (size_t g = 0; f.scale == ScaleType::F16 && g < cols / f.group; ++g) {
        ASSERT_EQ(scale_at(m, r, g * f.group), f16_to_float(static_cast<uint16_t>(raw_scale(r, g))));
      }
    }
  }
}

// The documented place of one element, computed by hand from the format's description.
TEST(MatrixFormat, Affine4BytesLieWhereTheDescriptionSays) {
  const MatrixFormat f = MatrixFormat::affine(4, 64);
  std::vector<std::byte> codes(16 * 64), zero(32), tile(f.tile_bytes());
  codes[5 * 64 + 38] =
      std::byte{11};  // row 5, column 38 = 32 + 4*1 + 2: line 1, byte 2 of row 5, high nibble
  pack_tile(f, codes.data(), 64, zero.data(), zero.data(), tile.data());
  EXPECT_EQ(std::to_integer<int>(tile[1 * 64 + 5 * 4 + 2]), 11 << 4);
}

}  // namespace
}  // namespace moeflux
