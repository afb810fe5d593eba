// Matrix products on the GPU, by the contracts of ops/linear.h: the same bits as the CPU's, in both
// precisions, whatever the number of vectors and whichever kernel runs.
//
// All pointers are device memory and matrices lie there as stored (base/matrix_format.h), aligned to 16
// bytes. Functions launch on `stream`, allocate nothing and wait for nothing, so that a step can be captured
// into a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/matrix_format.h"

namespace moeflux::cuda {

struct alignas(16) QuantSpan {  // of 64 quantised columns
  float xs, xb;                 // scale; scale * sum of q
  float xb_half[2];             // scale * sum of q, for columns 0..31 and 32..63
};

constexpr size_t span_count(size_t cols) { return (cols + 63) / 64; }

// n vectors, as floats and, for fast products, quantised. Columns beyond `cols` of the last span are zeros.
struct Vectors {
  size_t n = 0, cols = 0;
  float* f = nullptr;  // [n, stride]
  size_t stride = 0;
  int8_t* q = nullptr;        // [n, spans, 64], aligned to 16 bytes
  QuantSpan* span = nullptr;  // [n, spans]
};

// q and span from f.
void quantise(const Vectors& x, cudaStream_t stream);
// rest.q and rest.span from what the int8 form of x leaves over (x's own q and span must be there); rest.f is
// not used.
void quantise_rest(const Vectors& x, const Vectors& rest, cudaStream_t stream);

// A vector before its norm (ops/pointwise.h): w * (x / rms(x)) is the vector.
struct Unnormed {
  const float* x = nullptr;  // null: none
  const float* w = nullptr;
  float eps = 0;
};

// out[t] = w x[t] (+ bias), or out[t] += that.
struct Product {
  MatrixView w;
  const float* bias = nullptr;  // [w.rows]
  Vectors x;
  float* out = nullptr;
  size_t out_stride = 0;
  bool exact = false;  // float activations, whatever the format; else fast where it has integer codes
  bool add = false;    // add the result to out
  size_t first_row = 0, rows = 0;  // of w; rows 0: all. out holds rows from first_row on
  Vectors rest = {};               // where rest.q is there: a fine product
  const uint32_t* pick = nullptr;  // out[t] is of vector pick[t], t < n_picks
  size_t n_picks = 0;
  // Several heads: x holds n * heads vectors, vector t * heads + h meets rows first_row + h * rows on and
  // goes to out + t * out_stride + h * head_stride.
  size_t heads = 1, head_stride = 0;
  Unnormed unnormed = {};  // where can_norm: takes the place of x, of which only the size is used then
};

// Whether a launch can make the one vector of these products itself, from what comes before a norm.
bool can_norm(std::span<const Product> products);

// Products of which none reads what another writes, 64 at most; those of one format and few vectors share a
// launch.
void linear(std::span<const Product> products, cudaStream_t stream);
inline void linear(const Product& product, cudaStream_t stream) { linear({&product, 1}, stream); }

// For every vector t and head h: out[t][h][c] = sum_r w[h * rows + r][c] * x[t][h][r], r ascending, c <
// w.cols.
struct TransposedProduct {
  MatrixView w;
  size_t rows = 0, heads = 1, n = 0;
  const float* x = nullptr;  // x + t * x_stride + h * x_head
  size_t x_stride = 0, x_head = 0;
  float* out = nullptr;  // out + t * out_stride + h * out_head
  size_t out_stride = 0, out_head = 0;
};
void linear_transposed(const TransposedProduct& p, cudaStream_t stream);

// out[t] = row ids[t] of m, decoded.
void dequantise_rows(const MatrixView& m, const uint32_t* ids, size_t n, float* out, size_t out_stride,
                     cudaStream_t stream);

}  // namespace moeflux::cuda
