#include "convert/encode.h"

#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/numbers.h"
#include "convert/quantise.h"
#include "ops/linear.h"

namespace moeflux {
namespace {

// float_to_f16 is exact here: it only ever gets back a value that came from an f16.
uint16_t float_to_f16_exact(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) return static_cast<uint16_t>(sign | 0x7c00 | (magnitude & 0x7fffff) >> 13);
  if (magnitude < 0x38800000)  // below 2^-14: subnormal
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::fabs(x) * 0x1p24f));
  return static_cast<uint16_t>(sign | ((magnitude >> 13) - (112u << 10)));
}

uint8_t float_to_e8m0_exact(float x) {
  if (std::isnan(x)) return 255;
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(x) >> 23);
}

void put_scale(ScaleType type, float value, std::byte* out) {
  if (type == ScaleType::F32) {
    std::memcpy(out, &value, 4);
  } else if (type == ScaleType::E8m0) {
    *out = std::byte{float_to_e8m0_exact(value)};
  } else {
    const uint16_t bits = type == ScaleType::Bf16 ? float_to_bf16(value) : float_to_f16_exact(value);
    std::memcpy(out, &bits, 2);
  }
}

// One block of 16 rows before it is cut into tiles.
class Block {
 public:
  Block(const MatrixFormat& f, uint64_t cols)
      : f_(f),
        n_tiles_(ceil_div(cols, f.tile_cols())),
        stride_(n_tiles_ * f.tile_cols() * f.unpacked_bytes()),
        codes_(kTileRows * stride_),
        scales_(n_tiles_ * f.tile_scale_bytes()),
        biases_(f.is_affine() ? scales_.size() : 0) {}

  void clear() {
    std::ranges::fill(codes_, std::byte{0});
    std::ranges::fill(scales_, std::byte{0});
    std::ranges::fill(biases_, std::byte{0});
  }
  std::byte* codes(size_t row) { return codes_.data() + row * stride_; }
  uint8_t* bytes(size_t row) { return reinterpret_cast<uint8_t*>(codes(row)); }
  void set_scale(size_t row, uint64_t group, float scale) {
    put_scale(f_.scale, scale, &scales_[place(row, group)]);
  }
  void set_bias(size_t row, uint64_t group, float bias) {
    put_scale(f_.scale, bias, &biases_[place(row, group)]);
  }

  void pack(std::byte* out) const {
    for (uint64_t t = 0; t < n_tiles_; ++t)
      pack_tile(f_, codes_.data() + t * f_.tile_cols() * f_.unpacked_bytes(), stride_,
                scales_.data() + t * f_.tile_scale_bytes(),
                biases_.empty() ? nullptr : biases_.data() + t * f_.tile_scale_bytes(),
                out + t * f_.tile_bytes());
  }
  uint64_t packed_bytes() const { return n_tiles_ * f_.tile_bytes(); }

 private:
  size_t place(size_t row, uint64_t group) const {
    const uint64_t tile = group / f_.tile_groups(), inner = group % f_.tile_groups();
    return tile * f_.tile_scale_bytes() + (inner * kTileRows + row) * f_.scale_bytes();
  }

  MatrixFormat f_;
  uint64_t n_tiles_, stride_;
  std::vector<std::byte> codes_, scales_, biases_;
};

void keep_codes(const SourceRows& rows, uint64_t row, size_t at, Block& block) {
  std::memcpy(block.codes(at), &rows.codes[row * rows.cols], rows.cols);
  const uint64_t groups = ceil_div(rows.cols, rows.group);
  for (uint64_t g = 0; g < groups; ++g) {
    block.set_scale(at, g, rows.scales[row * groups + g]);
    if (!rows.biases.empty()) block.set_bias(at, g, rows.biases[row * groups + g]);
  }
}

double store_plain(const MatrixFormat& f, std::span<const float> w, std::byte* out) {
  double error = 0;
  for (size_t c = 0; c < w.size(); ++c) {
    if (f.type == MatrixType::F32) {
      std::memcpy(out + 4 * c, &w[c], 4);
      continue;
    }
    const uint16_t bits = f.type == MatrixType::Bf16 ? float_to_bf16(w[c]) : float_to_f16_exact(w[c]);
    std::memcpy(out + 2 * c, &bits, 2);
    const float back = f.type == MatrixType::Bf16 ? bf16_to_float(bits) : f16_to_float(bits);
    error += double{w[c] - back} * double{w[c] - back};
  }
  return error;
}

double quantise_row(const MatrixFormat& f, std::span<const float> w, size_t at, Block& block) {
  check(w.size() % f.group == 0 && (f.is_affine() || f.type == MatrixType::Mxfp4),
        "whole groups of a known code");
  double sum = 0;
  for (uint64_t g = 0; g * f.group < w.size(); ++g) {
    const float* in = w.data() + g * f.group;
    uint8_t* codes = block.bytes(at) + g * f.group;
    if (f.type == MatrixType::Mxfp4) {
      double error;
      block.set_scale(at, g, e8m0_to_float(quantise_mxfp4(in, codes, &error)));
      sum += error;
    } else {
      const QuantisedGroup q = quantise_affine(in, f.group, static_cast<int>(f.code_bits()), codes);
      block.set_scale(at, g, bf16_to_float(q.scale));
      block.set_bias(at, g, bf16_to_float(q.bias));
      sum += q.error;
    }
  }
  return sum;
}

}  // namespace

void encode_rows(const SourceMatrix& m, const SourceRows& rows, const MatrixFormat& target,
                 const std::string& name, std::span<std::byte> out, ErrorSum& sum) {
  Block block(target, rows.cols);
  const bool keep = m.is_coded() && !rows.codes.empty() && target == m.format;
  const bool same_bits = !m.is_coded() && target.group == 0 && rows.type != DType::F32 && target == m.format;
  check(out.size() == ceil_div(rows.n, kTileRows) * block.packed_bytes(), "room for whole tiles");
  std::vector<float> w(rows.cols);
  for (uint64_t row = 0; row < rows.n; ++row) {
    const size_t at = row % kTileRows;
    if (at == 0 && row + kTileRows > rows.n) block.clear();  // the missing rows of the last block are zero
    if (keep) {
      keep_codes(rows, row, at, block);
    } else if (same_bits) {
      std::memcpy(block.codes(at), &rows.plain[row * rows.cols * 2], rows.cols * 2);
    } else {
      rows_to_float(m, rows, row, w.data());
      const double power = dot(w.data(), w.data(), w.size());
      if (!std::isfinite(power))
        fail(Errc::Corrupt, "tensor {}: row {} of a piece holds values that are not finite", name, row);
      sum.power += power;
      sum.error +=
          target.group ? quantise_row(target, w, at, block) : store_plain(target, w, block.codes(at));
    }
    if (at + 1 == kTileRows || row + 1 == rows.n)
      block.pack(out.data() + row / kTileRows * block.packed_bytes());
  }
}

}  // namespace moeflux
