// What the bytes of a matrix mean: the one description that converter, loaders, CPU and CUDA kernels share.
//
// Every matrix [rows, cols] (row = output feature) is cut into tiles of 16 rows x max(64, group) columns;
// tiles lie row block by row block, in column order, so that a product walks one sequential stream. Inside a
// tile each 64-byte line holds 4 bytes of each of the 16 rows (lane = row), which suits 4-byte dot-product
// instructions:
//
//   for every 64 columns s of the tile:
//     4-bit   8 lines; line j: 4 bytes per row, byte b = w[4j+b] | w[32+4j+b] << 4
//     8-bit  16 lines; line j: 4 bytes per row, byte b = w[4j+b]
//     16-bit 32 lines; line j: w[2j], w[2j+1]          32-bit 64 lines; line j: w[j]
//   then the scales [groups in tile][16 rows], then (affine only) the biases [groups in tile][16 rows].
//
// Rows beyond the matrix and columns beyond its width are zero bytes, scales and biases included.
//
//   affine4/8  value = scale * code + bias     (MLX affine; group 32, 64 or 128; scale bf16, f16 or f32)
//   mxfp4      value = e2m1[code] * 2^(scale - 127)   (group 32, E8M0 scale)
//   fp8        value = e4m3(code) * scale      (group 128, f32 scale: a 128x128 block's scale, repeated per
//   row)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moeflux {

enum class MatrixType : uint8_t { F32, F16, Bf16, Affine4, Affine8, Mxfp4, Fp8 };
enum class ScaleType : uint8_t { None, Bf16, F16, F32, E8m0 };

inline constexpr size_t kTileRows = 16;

struct MatrixFormat {
  MatrixType type = MatrixType::Bf16;
  ScaleType scale = ScaleType::None;
  uint16_t group = 0;  // columns that share a scale; 0 where there are none

  bool operator==(const MatrixFormat&) const = default;

  static constexpr MatrixFormat plain(MatrixType type) { return {type, ScaleType::None, 0}; }
  static constexpr MatrixFormat affine(int bits, uint16_t group, ScaleType scale = ScaleType::Bf16) {
    return {bits <= 4 ? MatrixType::Affine4 : MatrixType::Affine8, scale, group};
  }
  static constexpr MatrixFormat mxfp4() { return {MatrixType::Mxfp4, ScaleType::E8m0, 32}; }
  static constexpr MatrixFormat fp8() { return {MatrixType::Fp8, ScaleType::F32, 128}; }

  constexpr bool is_affine() const { return type == MatrixType::Affine4 || type == MatrixType::Affine8; }
  constexpr size_t code_bits() const {
    constexpr size_t kBits[] = {32, 16, 16, 4, 8, 4, 8};
    return kBits[static_cast<size_t>(type)];
  }
  constexpr size_t scale_bytes() const {
    constexpr size_t kBytes[] = {0, 2, 2, 4, 1};
    return kBytes[static_cast<size_t>(scale)];
  }
  // Bytes of one code when it stands alone, as pack_tile takes it.
  constexpr size_t unpacked_bytes() const { return code_bits() <= 8 ? 1 : code_bits() / 8; }

  constexpr size_t tile_cols() const { return group > 64 ? group : 64; }
  constexpr size_t tile_groups() const { return group ? tile_cols() / group : 0; }
  constexpr size_t tile_code_bytes() const { return kTileRows * tile_cols() * code_bits() / 8; }
  constexpr size_t tile_scale_bytes() const { return kTileRows * tile_groups() * scale_bytes(); }
  constexpr size_t tile_bytes() const {
    return tile_code_bytes() + tile_scale_bytes() * (is_affine() ? 2 : 1);
  }
};

// "bf16", "affine4/g64/bf16", "mxfp4", "fp8"; from_string throws Error{Corrupt} naming `what`.
std::string to_string(const MatrixFormat& format);
MatrixFormat matrix_format_from_string(std::string_view text, std::string_view what);

// Bytes of a whole matrix; throws Error{Corrupt} on overflow.
uint64_t matrix_bytes(const MatrixFormat& format, uint64_t rows, uint64_t cols);

struct MatrixView {
  const std::byte* data = nullptr;
  MatrixFormat format;
  size_t rows = 0, cols = 0;

  explicit operator bool() const { return data != nullptr; }
  size_t n_row_blocks() const { return (rows + kTileRows - 1) / kTileRows; }
  size_t n_tiles_per_row() const { return (cols + format.tile_cols() - 1) / format.tile_cols(); }
  const std::byte* tile(size_t row_block, size_t t) const {
    return data + (row_block * n_tiles_per_row() + t) * format.tile_bytes();
  }
};

// out[0..cols) = row `row`, exactly as the formulas above say (each product and sum rounded to float).
void dequantise_row(const MatrixView& m, size_t row, float* out);

// One code and its scale and bias (1 and 0 where the format has none): the readers of integer dot products.
uint32_t code_at(const MatrixView& m, size_t row, size_t col);
float scale_at(const MatrixView& m, size_t row, size_t col);
float bias_at(const MatrixView& m, size_t row, size_t col);

// Writes one tile. codes: 16 rows of tile_cols() stand-alone codes, `row_stride` bytes apart;
// scales, biases: [tile_groups()][16] as stored.
void pack_tile(const MatrixFormat& format, const std::byte* codes, size_t row_stride, const std::byte* scales,
               const std::byte* biases, std::byte* out);

}  // namespace moeflux
