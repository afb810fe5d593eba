#include "base/matrix_format.h"

#include <array>
#include <cstring>

#include "base/checked.h"
#include "base/numbers.h"

namespace moeflux {
namespace {

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

constexpr const char* kTypeNames[] = {"f32", "f16", "bf16", "affine4", "affine8", "mxfp4", "fp8"};
constexpr const char* kScaleNames[] = {"none", "bf16", "f16", "f32", "e8m0"};

// Offset, inside a tile's codes, of the byte that holds element (row, col) or its first byte.
size_t code_offset(size_t bits, size_t row, size_t col) {
  const size_t span = (col / 64) * (kTileRows * 64 * bits / 8), c = col % 64;
  switch (bits) {
    case 4:
      return span + (c % 32) / 4 * 64 + row * 4 + c % 4;
    case 8:
      return span + c / 4 * 64 + row * 4 + c % 4;
    case 16:
      return span + c / 2 * 64 + row * 4 + c % 2 * 2;
    default:
      return span + c * 64 + row * 4;
  }
}

float decode_scale(ScaleType type, const std::byte* p) {
  switch (type) {
    case ScaleType::Bf16:
      return bf16_to_float(load<uint16_t>(p));
    case ScaleType::F16:
      return f16_to_float(load<uint16_t>(p));
    case ScaleType::F32:
      return load<float>(p);
    case ScaleType::E8m0:
      return e8m0_to_float(load<uint8_t>(p));
    case ScaleType::None:
      break;
  }
  return 1.0f;
}

struct Place {
  const std::byte* tile;
  size_t row, col;  // inside the tile
};

Place locate(const MatrixView& m, size_t row, size_t col) {
  return {m.tile(row / kTileRows, col / m.format.tile_cols()), row % kTileRows, col % m.format.tile_cols()};
}

const std::byte* scale_place(const MatrixFormat& f, const Place& p) {
  return p.tile + f.tile_code_bytes() + (p.col / f.group * kTileRows + p.row) * f.scale_bytes();
}

const std::array<float, 256>& e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t;
    for (size_t i = 0; i < 256; ++i) t[i] = e4m3_to_float(static_cast<uint8_t>(i));
    return t;
  }();
  return table;
}

// Decodes `n` columns of one tile row. Each of the functions below is the definition of its format.
void dequantise_affine(const MatrixFormat& f, const Place& at, size_t n, float* out) {
  for (size_t begin = 0; begin < n; begin += f.group) {
    const Place p{at.tile, at.row, begin};
    const std::byte* s = scale_place(f, p);
    const float scale = decode_scale(f.scale, s), bias = decode_scale(f.scale, s + f.tile_scale_bytes());
    for (size_t c = begin; c < begin + f.group && c < n; ++c) {
      const auto byte = std::to_integer<uint8_t>(at.tile[code_offset(f.code_bits(), at.row, c)]);
      const uint8_t code = f.type == MatrixType::Affine8 ? byte : c % 64 < 32 ? byte & 15 : byte >> 4;
      out[c] = scale * static_cast<float>(code) + bias;
    }
  }
}

void dequantise_mxfp4(const MatrixFormat& f, const Place& at, size_t n, float* out) {
  for (size_t c = 0; c < n; ++c) {
    const auto byte = std::to_integer<uint8_t>(at.tile[code_offset(4, at.row, c)]);
    const float scale = decode_scale(f.scale, scale_place(f, {at.tile, at.row, c}));
    out[c] = kE2m1[c % 64 < 32 ? byte & 15 : byte >> 4] * scale;
  }
}

void dequantise_fp8(const MatrixFormat& f, const Place& at, size_t n, float* out) {
  const auto& table = e4m3_table();
  const float scale = decode_scale(f.scale, scale_place(f, {at.tile, at.row, 0}));
  for (size_t c = 0; c < n; ++c)
    out[c] = table[std::to_integer<uint8_t>(at.tile[code_offset(8, at.row, c)])] * scale;
}

void dequantise_plain(const MatrixFormat& f, const Place& at, size_t n, float* out) {
  for (size_t c = 0; c < n; ++c) {
    const std::byte* p = at.tile + code_offset(f.code_bits(), at.row, c);
    out[c] = f.type == MatrixType::F32    ? load<float>(p)
             : f.type == MatrixType::Bf16 ? bf16_to_float(load<uint16_t>(p))
                                          : f16_to_float(load<uint16_t>(p));
  }
}

}  // namespace

std::string to_string(const MatrixFormat& f) {
  const char* type = kTypeNames[static_cast<size_t>(f.type)];
  if (!f.is_affine()) return type;
  return fmt::format("{}/g{}/{}", type, f.group, kScaleNames[static_cast<size_t>(f.scale)]);
}

MatrixFormat matrix_format_from_string(std::string_view text, std::string_view what) {
  constexpr MatrixFormat kPlain[] = {
      MatrixFormat::plain(MatrixType::F32), MatrixFormat::plain(MatrixType::F16),
      MatrixFormat::plain(MatrixType::Bf16), MatrixFormat::mxfp4(), MatrixFormat::fp8()};
  for (const MatrixFormat& f : kPlain)
    if (text == to_string(f)) return f;
  for (const int bits : {4, 8})
    for (const uint16_t group : {uint16_t{32}, uint16_t{64}, uint16_t{128}})
      for (const ScaleType scale : {ScaleType::Bf16, ScaleType::F16, ScaleType::F32})
        if (const auto f = MatrixFormat::affine(bits, group, scale); text == to_string(f)) return f;
  fail(Errc::Corrupt, "{}: unknown matrix format '{}'", what, text);
}

uint64_t matrix_bytes(const MatrixFormat& f, uint64_t rows, uint64_t cols) {
  const uint64_t tiles = checked_mul(ceil_div(rows, kTileRows), ceil_div(cols, f.tile_cols()), "matrix size");
  return checked_mul(tiles, f.tile_bytes(), "matrix size");
}

void dequantise_row(const MatrixView& m, size_t row, float* out) {
  const MatrixFormat& f = m.format;
  for (size_t begin = 0; begin < m.cols; begin += f.tile_cols()) {
    const Place at = locate(m, row, begin);
    const size_t n = std::min(f.tile_cols(), m.cols - begin);
    if (f.is_affine())
      dequantise_affine(f, at, n, out + begin);
    else if (f.type == MatrixType::Mxfp4)
      dequantise_mxfp4(f, at, n, out + begin);
    else if (f.type == MatrixType::Fp8)
      dequantise_fp8(f, at, n, out + begin);
    else
      dequantise_plain(f, at, n, out + begin);
  }
}

uint32_t code_at(const MatrixView& m, size_t row, size_t col) {
  const Place p = locate(m, row, col);
  const size_t bits = m.format.code_bits();
  const std::byte* at = p.tile + code_offset(bits, p.row, p.col);
  if (bits == 32) return load<uint32_t>(at);
  if (bits == 16) return load<uint16_t>(at);
  const auto byte = std::to_integer<uint8_t>(*at);
  if (bits == 8) return byte;
  return p.col % 64 < 32 ? byte & 15 : byte >> 4;
}

float scale_at(const MatrixView& m, size_t row, size_t col) {
  if (m.format.scale == ScaleType::None) return 1.0f;
  return decode_scale(m.format.scale, scale_place(m.format, locate(m, row, col)));
}

float bias_at(const MatrixView& m, size_t row, size_t col) {
  if (!m.format.is_affine()) return 0.0f;
  const std::byte* scale = scale_place(m.format, locate(m, row, col));
  return decode_scale(m.format.scale, scale + m.format.tile_scale_bytes());
}

void pack_tile(const MatrixFormat& f, const std::byte* codes, size_t row_stride, const std::byte* scales,
               const std::byte* biases, std::byte* out) {
  const size_t bits = f.code_bits(), n_spans = f.tile_cols() / 64, span_bytes = kTileRows * 8 * bits;
  for (size_t row = 0; row < kTileRows; ++row) {
    const std::byte* in = codes + row * row_stride;
    for (size_t s = 0; s < n_spans; ++s, in += 64 * f.unpacked_bytes()) {
      std::byte* line = out + s * span_bytes + row * 4;
      if (bits == 4) {
        for (size_t j = 0; j < 8; ++j) {
          const uint32_t word = load<uint32_t>(in + 4 * j) | load<uint32_t>(in + 32 + 4 * j) << 4;
          std::memcpy(line + 64 * j, &word, 4);
        }
      } else {
        for (size_t j = 0; j < 2 * bits; ++j) std::memcpy(line + 64 * j, in + 4 * j, 4);
      }
    }
  }
  out += f.tile_code_bytes();
  if (f.group) std::memcpy(out, scales, f.tile_scale_bytes());
  if (f.is_affine()) std::memcpy(out + f.tile_scale_bytes(), biases, f.tile_scale_bytes());
}

}  // namespace moeflux
