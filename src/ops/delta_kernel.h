// The gated delta rule of delta.h on sixteen lanes, for a run of tokens of one block. Every sum is in the
// order in which single tokens would add, so the bits do not depend on the length of the run. Included once
// per instruction set.
#pragma once

namespace moeflux::MOEFLUX_ISA {
namespace {

// out[r][j] = sum_i S[i][j] x[r][i], i ascending, for R vectors and V * 16 columns.
template <size_t R, size_t V, bool Whole>
inline void state_product(const DeltaHead& h, const float* const* x, size_t column, float* const* out) {
  F c[R][V];
  const size_t left = h.value_dim - column;
  for (size_t r = 0; r < R; ++r)
    for (size_t v = 0; v < V; ++v) c[r][v] = zero();
  for (size_t i = 0; i < h.key_dim; ++i) {
    const float* line = h.state + i * h.value_dim + column;
    F s[V];
    for (size_t v = 0; v < V; ++v) s[v] = Whole ? load(line + 16 * v) : load_n(line + 16 * v, left);
    for (size_t r = 0; r < R; ++r) {
      const F k = set(x[r][i]);
      for (size_t v = 0; v < V; ++v) c[r][v] = fma(k, s[v], c[r][v]);
    }
  }
  for (size_t r = 0; r < R; ++r)
    for (size_t v = 0; v < V; ++v)
      Whole ? store(out[r] + column + 16 * v, c[r][v]) : store_n(out[r] + column + 16 * v, left, c[r][v]);
}

template <size_t R>
inline void state_products(const DeltaHead& h, const float* const* x, float* const* out) {
  size_t column = 0;
  if constexpr (R == 2 && kMostFew >= 8)  // a token alone: the state comes from memory, in order
    for (; column + 128 <= h.value_dim; column += 128) state_product<R, 8, true>(h, x, column, out);
  for (; column + 64 <= h.value_dim; column += 64) state_product<R, 4, true>(h, x, column, out);
  for (; column < h.value_dim; column += 16) state_product<R, 1, false>(h, x, column, out);
}

// sum[j] = first * base[j] + sum_t factors[t] values[t][j], t ascending below n.
inline void add_block(const DeltaHead& h, float first, const float* base, const float* factors, size_t n,
                      float* total) {
  size_t column = 0;
  for (; column + 128 <= h.value_dim; column += 128) {
    F c[8];
    for (size_t v = 0; v < 8; ++v) c[v] = mul(set(first), load(base + column + 16 * v));
    for (size_t t = 0; t < n; ++t) {
      const F f = set(factors[t]);
      const float* line = h.values + t * h.value_dim + column;
      for (size_t v = 0; v < 8; ++v) c[v] = fma(f, load(line + 16 * v), c[v]);
    }
    for (size_t v = 0; v < 8; ++v) store(total + column + 16 * v, c[v]);
  }
  for (; column < h.value_dim; column += 16) {
    const size_t left = h.value_dim - column;
    F c = mul(set(first), load_n(base + column, left));
    for (size_t t = 0; t < n; ++t)
      c = fma(set(factors[t]), load_n(h.values + t * h.value_dim + column, left), c);
    store_n(total + column, left, c);
  }
}

// exp(x) for x <= 0, and nothing at all below 1e-26: products with what has decayed that far would be
// subnormal numbers, which processors handle a hundred times slower.
inline F decay_lanes(F x) {
  const F least = set(-60.0f);
  return sub(exp_lanes(max(x, least)), exp_lanes(least));
}

// for_k[t] = exp(G - G_t) * (k . k_t), for_q likewise, for 16 V tokens of the block.
template <size_t V>
inline void key_factors(const DeltaHead& h, const float* k, const float* q, float decay, float* for_k,
                        float* for_q) {
  F ck[V], cq[V];
  for (size_t v = 0; v < V; ++v) ck[v] = cq[v] = zero();
  for (size_t i = 0; i < h.key_dim; ++i) {
    const F ki = set(k[i]), qi = set(q[i]);
    for (size_t v = 0; v < V; ++v) {
      const F line = load(h.keys + i * kDeltaBlock + 16 * v);
      ck[v] = fma(ki, line, ck[v]);
      cq[v] = fma(qi, line, cq[v]);
    }
  }
  for (size_t v = 0; v < V; ++v) {
    const F d = decay_lanes(sub(set(decay), load(h.decay + 16 * v)));
    store(for_k + 16 * v, mul(ck[v], d));
    store(for_q + 16 * v, mul(cq[v], d));
  }
}

template <size_t R>
inline void fold_rows(const DeltaHead& h, size_t row, F keep, const float* factors) {
  alignas(64) float k[R][kDeltaBlock];
  for (size_t r = 0; r < R; ++r)
    for (size_t t = 0; t < kDeltaBlock; t += 16)
      store(k[r] + t, mul(load(factors + t), load(h.keys + (row + r) * kDeltaBlock + t)));
  for (size_t column = 0; column < h.value_dim; column += 16) {
    const size_t left = h.value_dim - column;
    F c[R];
    for (size_t r = 0; r < R; ++r) c[r] = mul(keep, load_n(h.state + (row + r) * h.value_dim + column, left));
    for (size_t t = 0; t < kDeltaBlock; ++t) {
      const F v = load_n(h.values + t * h.value_dim + column, left);
      for (size_t r = 0; r < R; ++r) c[r] = fma(set(k[r][t]), v, c[r]);
    }
    for (size_t r = 0; r < R; ++r) store_n(h.state + (row + r) * h.value_dim + column, left, c[r]);
  }
}

inline void fold_block(const DeltaHead& h) {
  alignas(64) float factors[kDeltaBlock], keep[16];
  const float last = h.decay[kDeltaBlock - 1];
  for (size_t t = 0; t < kDeltaBlock; t += 16)
    store(factors + t, decay_lanes(sub(set(last), load(h.decay + t))));
  store(keep, decay_lanes(set(last)));
  size_t row = 0;
  for (; row + 8 <= h.key_dim; row += 8) fold_rows<8>(h, row, set(keep[0]), factors);
  for (; row < h.key_dim; ++row) fold_rows<1>(h, row, set(keep[0]), factors);
}

void delta_block(const DeltaHead& h, size_t index, size_t count, const DeltaTokens& tokens,
                 float* scratch) noexcept {
  const size_t dim = h.value_dim;
  float *with_k = scratch, *with_q = with_k + kDeltaBlock * dim, *for_k = with_q + kDeltaBlock * dim,
        *for_q = for_k + kDeltaBlock;
  for (size_t t = 0; t < count; ++t) {
    const size_t at = index + t;
    h.decay[at] = at > 0 ? h.decay[at - 1] + tokens.g[t] : tokens.g[t];
    for (size_t i = 0; i < h.key_dim; ++i) h.keys[i * kDeltaBlock + at] = tokens.k[t * tokens.qk_stride + i];
  }
  for (size_t t = 0; t < count;) {
    const size_t n = count - t >= 2 ? 2 : 1;
    const float* x[4];
    float* out[4];
    for (size_t r = 0; r < n; ++r) {
      x[2 * r] = tokens.k + (t + r) * tokens.qk_stride;
      x[2 * r + 1] = tokens.q + (t + r) * tokens.qk_stride;
      out[2 * r] = with_k + (t + r) * dim;
      out[2 * r + 1] = with_q + (t + r) * dim;
    }
    if (n == 2)
      state_products<4>(h, x, out);
    else
      state_products<2>(h, x, out);
    t += n;
  }
  for (size_t t = 0; t < count; ++t) {
    const size_t at = index + t;
    const float *k = tokens.k + t * tokens.qk_stride, *q = tokens.q + t * tokens.qk_stride;
    float grown[16];
    store(grown, decay_lanes(set(h.decay[at])));
    switch (at / 16) {
      case 0:
        key_factors<1>(h, k, q, h.decay[at], for_k, for_q);
        break;
      case 1:
        key_factors<2>(h, k, q, h.decay[at], for_k, for_q);
        break;
      case 2:
        key_factors<3>(h, k, q, h.decay[at], for_k, for_q);
        break;
      default:
        key_factors<4>(h, k, q, h.decay[at], for_k, for_q);
    }
    float* fresh = h.values + at * dim;
    add_block(h, grown[0], with_k + t * dim, for_k, at, fresh);
    for (size_t j = 0; j < dim; j += 16)
      store_n(fresh + j, dim - j,
              mul(set(tokens.beta[t]),
                  sub(load_n(tokens.v + t * tokens.v_stride + j, dim - j), load_n(fresh + j, dim - j))));
    add_block(h, grown[0], with_q + t * dim, for_q, at + 1, tokens.out + t * tokens.out_stride);
  }
  if (index + count == kDeltaBlock) fold_block(h);
}

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
