#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "ops/linear.h"

namespace moeflux {
namespace {

// Codes, scales and biases of one row, spread out so that the products below read like the contract.
struct RowCodes {
  std::vector<int16_t> code;       // per column, padded to 64
  std::vector<float> scale, bias;  // per group of `group` columns

  RowCodes(const MatrixView& m, size_t row) : code((m.cols + 63) / 64 * 64, 0) {
    const bool mx = m.format.type == MatrixType::Mxfp4;
    for (size_t c = 0; c < m.cols; ++c) {
      const uint32_t raw = code_at(m, row, c);
      code[c] = static_cast<int16_t>(mx ? kE2m1Doubled[raw] : static_cast<int>(raw));
    }
    for (size_t c = 0; c < m.cols; c += m.format.group) {
      const float s = scale_at(m, row, c);
      scale.push_back(mx ? 0.5f * s : s);
      bias.push_back(bias_at(m, row, c));
    }
  }
};

float fast_dot(const MatrixFormat& f, const RowCodes& w, const QuantisedVector& x) {
  const size_t group = f.group, step = std::min<size_t>(group, 64);
  float c[8] = {};
  for (size_t at = 0; at < w.code.size() && at / group < w.scale.size(); at += step) {
    int32_t products = 0, sum = 0;
    for (size_t i = at; i < at + step; ++i) {
      products += int32_t{w.code[i]} * x.q[i];
      sum += x.q[i];
    }
    const size_t span = at / 64;
    float& chain = c[span & 7];
    chain = std::fma(w.scale[at / group] * x.scale[span], static_cast<float>(products), chain);
    if (f.is_affine()) chain = std::fma(w.bias[at / group], x.scale[span] * static_cast<float>(sum), chain);
  }
  float e[4];
  for (int k = 0; k < 4; ++k) e[k] = c[k] + c[k + 4];
  return (e[0] + e[2]) + (e[1] + e[3]);
}

}  // namespace

bool has_integer_codes(const MatrixFormat& f) { return f.is_affine() || f.type == MatrixType::Mxfp4; }

Tiles tiles_of(const MatrixView& m) {
  const MatrixFormat& f = m.format;
  return {.data = reinterpret_cast<const uint8_t*>(m.data),
          .rows = m.rows,
          .cols = m.cols,
          .n_tiles = m.n_tiles_per_row(),
          .tile_bytes = f.tile_bytes(),
          .tile_spans = f.tile_cols() / 64,
          .span_bytes = kTileRows * 8 * f.code_bits(),
          .scales_at = f.tile_code_bytes(),
          .group_bytes = kTileRows * f.scale_bytes(),
          .bias_after = f.tile_scale_bytes(),
          .group = f.group,
          .type = f.type,
          .scale = f.scale};
}

float dot(const float* a, const float* b, size_t n) {
  float sum[16] = {};
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (size_t l = 0; l < 16; ++l) sum[l] += a[i + l] * b[i + l];
  for (size_t l = 0; i + l < n; ++l) sum[l] += a[i + l] * b[i + l];
  for (size_t half = 8; half > 0; half /= 2)
    for (size_t l = 0; l < half; ++l) sum[l] += sum[l + half];
  return sum[0];
}

void linear_exact_ref(const MatrixView& m, size_t first, size_t count, const float* x, size_t n,
                      size_t x_stride, float* out, size_t out_stride) {
  std::vector<float> row(m.cols);
  for (size_t i = 0; i < count; ++i) {
    dequantise_row(m, first + i, row.data());
    for (size_t t = 0; t < n; ++t) out[t * out_stride + i] = dot(row.data(), x + t * x_stride, m.cols);
  }
}

QuantisedVector quantise_vector(std::span<const float> x) {
  const size_t n_spans = (x.size() + 63) / 64;
  QuantisedVector v{std::vector<int8_t>(n_spans * 64, 0), std::vector<float>(n_spans)};
  for (size_t s = 0; s < n_spans; ++s) {
    const auto part = x.subspan(s * 64, std::min<size_t>(64, x.size() - s * 64));
    float most = 0;
    for (const float value : part) most = std::max(most, std::fabs(value));
    v.scale[s] = most / 127.0f;
    const float inverse = most > 0 ? 127.0f / most : 0.0f;
    for (size_t i = 0; i < part.size(); ++i)
      v.q[s * 64 + i] = static_cast<int8_t>(std::nearbyint(std::clamp(part[i] * inverse, -127.0f, 127.0f)));
  }
  return v;
}

void remainder_ref(std::span<const float> x, float* r) {
  const QuantisedVector v = quantise_vector(x);
  for (size_t i = 0; i < x.size(); ++i) r[i] = std::fma(-v.scale[i / 64], static_cast<float>(v.q[i]), x[i]);
}

void linear_fast_ref(const MatrixView& m, size_t first, size_t count, const float* x, size_t n,
                     size_t x_stride, float* out, size_t out_stride) {
  if (!has_integer_codes(m.format)) return linear_exact_ref(m, first, count, x, n, x_stride, out, out_stride);
  std::vector<QuantisedVector> quantised;
  for (size_t t = 0; t < n; ++t) quantised.push_back(quantise_vector({x + t * x_stride, m.cols}));
  for (size_t i = 0; i < count; ++i) {
    const RowCodes row(m, first + i);
    for (size_t t = 0; t < n; ++t) out[t * out_stride + i] = fast_dot(m.format, row, quantised[t]);
  }
}

void linear_transposed_ref(const MatrixView& m, size_t first, size_t count, const float* x, float* out) {
  std::vector<float> row(m.cols);
  std::fill_n(out, m.cols, 0.0f);
  for (size_t r = 0; r < count; ++r) {
    dequantise_row(m, first + r, row.data());
    for (size_t c = 0; c < m.cols; ++c) out[c] += row[c] * x[r];
  }
}

}  // namespace moeflux
