// Matrix times vectors, y[t][r] = sum_c w[r][c] * x[t][c], in the two precisions that every backend has.
//
// exact: weights decoded to float, float activations. Sixteen partial sums (columns congruent mod 16,
//   ascending, each product rounded), then a tree of halves: the order depends on the width only, never on
//   how many vectors there are.
// fast:  for affine and mxfp4 weights the activations are int8 per 64 columns and every product within a
//   group is an exact integer, so the result has the same bits on every machine:
//     activations   m = max|x|, xs = m/127, q = round_to_even(x * (127/m)); xb of a sub-group = xs *
//     float(sum q)
//     c[0..7] = 0; for each 64-column span s = 0,1,..; for each weight group of it (one, or two of 32
//     columns):
//       I = sum code * q                                (exact: |I| < 2^24)
//       c[s & 7] = fma(scale * xs, float(I), c[s & 7])  (product rounded first)
//       c[s & 7] = fma(bias, xb, c[s & 7])              (affine only)
//     e_k = c[k] + c[k+4];  y = (e_0 + e_2) + (e_1 + e_3)
//   mxfp4 uses doubled codes (integers) and half the scale. Other formats are computed as in exact.
// fine:  fast, for the few products whose error is amplified by what follows: what the int8 activations leave
//   over, r = fma(-xs, q, x), is a second vector of activations; y = y(x) + y(r).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_format.h"

namespace moeflux {

float dot(const float* a, const float* b, size_t n);

// n vectors of m.cols floats, x_stride apart; rows [first, first + count) of m; out[t * out_stride + i] for
// row first + i. out must not overlap x.
void linear_exact_ref(const MatrixView& m, size_t first, size_t count, const float* x, size_t n,
                      size_t x_stride, float* out, size_t out_stride);
void linear_fast_ref(const MatrixView& m, size_t first, size_t count, const float* x, size_t n,
                     size_t x_stride, float* out, size_t out_stride);
bool has_integer_codes(const MatrixFormat& format);  // those for which fast is not exact

// out[c] = sum_r m[first + r][c] * x[r], r ascending: the transposed product, for MLA's absorbed keys.
void linear_transposed_ref(const MatrixView& m, size_t first, size_t count, const float* x, float* out);

struct QuantisedVector {
  std::vector<int8_t> q;     // padded with zeros to a multiple of 64
  std::vector<float> scale;  // per 64 columns
};
QuantisedVector quantise_vector(std::span<const float> x);

// r = x - what its int8 form stands for.
void remainder_ref(std::span<const float> x, float* r);

// -- what the kernels of ops.h take: plain numbers and pointers

struct Tiles {  // a MatrixView, worked out
  const uint8_t* data;
  size_t rows, cols;
  size_t n_tiles, tile_bytes;     // per row block of 16
  size_t tile_spans, span_bytes;  // spans of 64 columns in a tile, and the bytes of their codes
  size_t scales_at, group_bytes;  // where a tile's scales begin, bytes of the 16 scales of one group
  size_t bias_after;              // bytes from a scale to its bias
  size_t group;
  MatrixType type;
  ScaleType scale;
};
Tiles tiles_of(const MatrixView& m);

// With so few vectors this processor's own prefetchers bring weights faster than if lines are asked for
// ahead.
extern const size_t kMostUnaided;

struct SpanScale {   // of 64 quantised columns
  float xs, xb;      // scale; scale * sum of q
  float xb_half[2];  // scale * sum of q, for columns 0..31 and 32..63
  int32_t sum[2];    // sum of q, likewise
  int32_t unused[2];
};

// n vectors as floats [n, stride] and, for fast, quantised: span-major, so that a tile meets the same columns
// of all vectors in one place.
struct Panel {
  size_t n, cols;
  const float* f;
  size_t stride;
  int8_t* q;         // [spans, n, 64]
  SpanScale* scale;  // [spans, n]
};

}  // namespace moeflux
