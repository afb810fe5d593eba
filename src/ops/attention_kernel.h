// The kernels of attention.h on sixteen lanes: a lane is a position for scores, a component for values.
// Included once per instruction set.
#pragma once

namespace moeflux::MOEFLUX_ISA {
namespace {

inline uint16_t bf16_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float row_scale(const float* x, size_t n) {
  F most = zero();
  for (size_t i = 0; i < n; i += 16) most = max(most, abs(load_n(x + i, n - i)));
  return largest(most) / 127.0f;
}

inline int8_t rounded(float x) {
  const float r = __builtin_nearbyintf(x);
  return static_cast<int8_t>(r < -127 ? -127 : r > 127 ? 127 : r);
}

// A part of a page as T.
template <class T>
inline T* part(std::byte* page, size_t offset) {
  return reinterpret_cast<T*>(page + offset);
}

void store_key(const KvHead& kv, size_t position, const float* key) noexcept {
  std::byte* page = kv.pages[position / kKvBlock];
  const size_t at = position % kKvBlock, dim = kv.key_dim, first = at / 16 * dim * 16 + at % 16;
  if (kv.type == KvType::F32) {
    auto* to = part<float>(page, kv.keys) + first;
    for (size_t d = 0; d < dim; ++d) to[16 * d] = key[d];
  } else if (kv.type == KvType::Bf16) {
    auto* to = part<uint16_t>(page, kv.keys) + first;
    for (size_t d = 0; d < dim; ++d) to[16 * d] = bf16_of(key[d]);
  } else {
    const float scale = row_scale(key, dim), inverse = scale > 0 ? 1.0f / scale : 0.0f;
    auto* to = part<int8_t>(page, kv.keys) + first;
    for (size_t d = 0; d < dim; ++d) to[16 * d] = rounded(key[d] * inverse);
    part<float>(page, kv.key_scale)[at] = scale;
  }
}

void store_value(const KvHead& kv, size_t position, const float* value) noexcept {
  std::byte* page = kv.pages[position / kKvBlock];
  const size_t at = position % kKvBlock, dim = kv.value_dim;
  if (kv.type == KvType::F32) {
    auto* to = part<float>(page, kv.values) + at * dim;
    for (size_t d = 0; d < dim; ++d) to[d] = value[d];
  } else if (kv.type == KvType::Bf16) {
    auto* to = part<uint16_t>(page, kv.values) + at * dim;
    for (size_t d = 0; d < dim; ++d) to[d] = bf16_of(value[d]);
  } else {
    const float scale = row_scale(value, dim), inverse = scale > 0 ? 1.0f / scale : 0.0f;
    auto* to = part<int8_t>(page, kv.values) + at * dim;
    for (size_t d = 0; d < dim; ++d) to[d] = rounded(value[d] * inverse);
    part<float>(page, kv.value_scale)[at] = scale;
  }
}

inline F load_kv(KvType type, const void* base, size_t at) {
  if (type == KvType::F32) return load(static_cast<const float*>(base) + at);
  if (type == KvType::Bf16) return from_bf16(load_u16(static_cast<const uint16_t*>(base) + at));
  return to_float(load_i8(static_cast<const int8_t*>(base) + at));
}

// Keys of one block as floats [key_dim][kKvBlock]; an int8 key's scale is applied to its scores.
inline void unpack_keys(const KvHead& kv, const std::byte* page, float* out) {
  for (size_t tile = 0; tile < kKvBlock / 16; ++tile) {
    const size_t from = tile * kv.key_dim * 16;
    for (size_t d = 0; d < kv.key_dim; ++d)
      store(out + d * kKvBlock + tile * 16, load_kv(kv.type, page + kv.keys, from + d * 16));
  }
}

// Values of one block as floats [kKvBlock][value_dim].
inline void unpack_values(const KvHead& kv, const std::byte* page, const float* keys, float* out) {
  const size_t dim = kv.value_dim;
  if (!kv.own_values) {
    for (size_t d = 0; d < dim; ++d)
      for (size_t p = 0; p < kKvBlock; ++p) out[p * dim + d] = keys[d * kKvBlock + p];
    return;
  }
  for (size_t i = 0; i < kKvBlock * dim; i += 16) store(out + i, load_kv(kv.type, page + kv.values, i));
}

// scores[r][p] = q_r . k_p for R rows and one block; components ascending.
template <size_t R>
inline void block_scores(const float* keys, size_t dim, const float* const* queries, float* scores) {
  F c[R][4];
  for (size_t r = 0; r < R; ++r)
    for (size_t t = 0; t < 4; ++t) c[r][t] = zero();
  for (size_t d = 0; d < dim; ++d) {
    const float* line = keys + d * kKvBlock;
    const F k[4] = {load(line), load(line + 16), load(line + 32), load(line + 48)};
    for (size_t r = 0; r < R; ++r) {
      const F q = set(queries[r][d]);
      for (size_t t = 0; t < 4; ++t) c[r][t] = fma(q, k[t], c[r][t]);
    }
  }
  for (size_t r = 0; r < R; ++r)
    for (size_t t = 0; t < 4; ++t) store(scores + r * kKvBlock + 16 * t, c[r][t]);
}

constexpr float kNoScore = -1e30f;

// Scales a row's scores of block [begin, begin + kKvBlock), kNoScore where it does not look, and brings its
// maximum, and with it its sums, up to date. lanes: the row's sum of exponentials in 16 lanes.
inline void block_maximum(const KvHead& kv, size_t begin, float scale, const AttendRow& row, float* scores,
                          float* lanes) {
  const size_t low = row.first > begin ? row.first - begin : 0,
               high = row.last >= begin ? smaller(kKvBlock, row.last + 1 - begin) : 0;
  const float* key_scale = part<float>(kv.pages[begin / kKvBlock], kv.key_scale);
  F most = set(row.max_sum[0]);
  for (size_t t = 0; t < 4; ++t) {
    F s = mul(load(scores + 16 * t), set(scale));
    if (kv.type == KvType::Q8) s = mul(s, load(key_scale + 16 * t));
    if (low > 0 || high < kKvBlock)
      s = select(lanes_between(low > 16 * t ? low - 16 * t : 0, high > 16 * t ? high - 16 * t : 0), s,
                 set(kNoScore));
    store(scores + 16 * t, s);
    most = max(most, s);
  }
  const float m = largest(most), before = row.max_sum[0];
  if (m == before) return;
  float f[16];
  store(f, exp_lanes(set(before - m)));
  store(lanes, mul(load(lanes), set(f[0])));
  for (size_t i = 0; i < kv.value_dim; i += 16)
    store_n(row.out + i, kv.value_dim - i, mul(load_n(row.out + i, kv.value_dim - i), set(f[0])));
  row.max_sum[0] = m;
}

// To the nearest bf16 number, ties to even; of finite numbers.
inline F round_bf16(F x) {
  const I bits = as_int(x), odd = and_i(shr<16>(bits), set_i(1));
  return as_float(and_i(add_i(bits, add_i(odd, set_i(0x7fff))), set_i(-0x10000)));
}

// Turns such scores into weights: put(t, those of tile t).
template <class Put>
inline void block_weights(const KvHead& kv, size_t begin, const AttendRow& row, const float* scores,
                          float* lanes, Put put) {
  std::byte* page = kv.pages[begin / kKvBlock];
  const float* value_scale = part<float>(page, kv.own_values ? kv.value_scale : kv.key_scale);
  const F m = set(row.max_sum[0]);
  F total = load(lanes);
  for (size_t t = 0; t < 4; ++t) {
    const F s = load(scores + 16 * t);
    F p = select(equal(as_int(s), as_int(set(kNoScore))), zero(), exp_lanes(sub(s, m)));
    total = add(total, p);
    if (kv.type == KvType::Q8) p = mul(p, load(value_scale + 16 * t));
    put(t, p);
  }
  store(lanes, total);
}

// out_r += sum_p weights[r][p] * values[p], positions ascending.
template <size_t R, size_t V, bool Whole>
inline void add_values(const float* values, size_t dim, size_t column, const AttendRow* rows,
                       const float* weights) {
  F c[R][V];
  const size_t left = dim - column;
  for (size_t r = 0; r < R; ++r)
    for (size_t v = 0; v < V; ++v)
      c[r][v] = Whole ? load(rows[r].out + column + 16 * v) : load_n(rows[r].out + column + 16 * v, left);
  for (size_t p = 0; p < kKvBlock; ++p) {
    const float* line = values + p * dim + column;
    F x[V];
    for (size_t v = 0; v < V; ++v) x[v] = Whole ? load(line + 16 * v) : load_n(line + 16 * v, left);
    for (size_t r = 0; r < R; ++r) {
      const F w = set(weights[r * kKvBlock + p]);
      for (size_t v = 0; v < V; ++v) c[r][v] = fma(w, x[v], c[r][v]);
    }
  }
  for (size_t r = 0; r < R; ++r)
    for (size_t v = 0; v < V; ++v)
      Whole ? store(rows[r].out + column + 16 * v, c[r][v])
            : store_n(rows[r].out + column + 16 * v, left, c[r][v]);
}

// rounded: where Narrow, the rows' queries, rounded.
template <size_t R, bool Narrow>
inline void attend_rows(const KvHead& kv, size_t begin, float scale, const AttendRow* rows, const float* keys,
                        const float* values, float* scores, float* lanes, const float* rounded) {
  const float* queries[R];
  for (size_t r = 0; r < R; ++r) queries[r] = Narrow ? rounded + r * kv.key_dim : rows[r].q;
  block_scores<R>(keys, kv.key_dim, queries, scores);
  for (size_t r = 0; r < R; ++r)
    block_maximum(kv, begin, scale, rows[r], scores + r * kKvBlock, lanes + 16 * r);
  for (size_t r = 0; r < R; ++r) {
    float* row = scores + r * kKvBlock;
    block_weights(kv, begin, rows[r], row, lanes + 16 * r,
                  [row](size_t t, F p) { store(row + 16 * t, Narrow ? round_bf16(p) : p); });
  }
  size_t column = 0;
  for (; column + 64 <= kv.value_dim; column += 64)
    add_values<R, 4, true>(values, kv.value_dim, column, rows, scores);
  for (; column < kv.value_dim; column += 16)
    add_values<R, 1, false>(values, kv.value_dim, column, rows, scores);
}

inline void begin_rows(const AttendRow* rows, size_t n, size_t value_dim, float* lanes) {
  for (size_t r = 0; r < n; ++r) {
    rows[r].max_sum[0] = kNoScore;
    store(lanes + 16 * r, zero());
    for (size_t i = 0; i < value_dim; ++i) rows[r].out[i] = 0;
  }
}

template <bool Narrow>
inline void attend_floats(const KvHead& kv, size_t begin, size_t end, float scale, const AttendRow* rows,
                          size_t n, float* scratch) {
  float *keys = scratch, *values = keys + kKvBlock * kv.key_dim, *lanes = values + kKvBlock * kv.value_dim;
  float *scores = lanes + 16 * n, *rounded = scores + 4 * kKvBlock;
  begin_rows(rows, n, kv.value_dim, lanes);
  const size_t dim = kv.key_dim;
  for (size_t r = 0; Narrow && r < n; ++r)
    for (size_t d = 0; d < dim; d += 16)
      store_n(rounded + r * dim + d, dim - d, round_bf16(load_n(rows[r].q + d, dim - d)));
  for (size_t at = begin; at < end; at += kKvBlock) {
    const std::byte* page = kv.pages[at / kKvBlock];
    unpack_keys(kv, page, keys);
    unpack_values(kv, page, keys, values);
    size_t r = 0;
    for (; r + 4 <= n; r += 4)
      attend_rows<4, Narrow>(kv, at, scale, rows + r, keys, values, scores, lanes + 16 * r,
                             rounded + r * dim);
    for (; r < n; ++r)
      attend_rows<1, Narrow>(kv, at, scale, rows + r, keys, values, scores, lanes + 16 * r,
                             rounded + r * dim);
  }
  for (size_t r = 0; r < n; ++r) rows[r].max_sum[1] = sum(load(lanes + 16 * r));
}

// Positions [begin, end) of one partition. Sets out and max_sum of each row.
void attend(const KvHead& kv, size_t begin, size_t end, float scale, const AttendRow* rows, size_t n,
            float* scratch) noexcept {
  attend_floats<false>(kv, begin, end, scale, rows, n, scratch);
}

inline float exp_one(float x) {
  float f[16];
  store(f, exp_lanes(set(x)));
  return f[0];
}

// Adds the sums of a later part to those of the earlier ones.
void merge_attention(const AttendRow& part, const AttendRow& into, size_t value_dim) noexcept {
  const float a = into.max_sum[0], b = part.max_sum[0];
  if (b == kNoScore) return;
  const float m = a > b ? a : b;
  const float keep = a == kNoScore ? 0.0f : exp_one(a - m), take = exp_one(b - m);
  for (size_t i = 0; i < value_dim; i += 16)
    store_n(into.out + i, value_dim - i,
            fma(set(take), load_n(part.out + i, value_dim - i),
                mul(set(keep), load_n(into.out + i, value_dim - i))));
  into.max_sum[0] = m;
  into.max_sum[1] = into.max_sum[1] * keep + part.max_sum[1] * take;
}

void finish_attention(const AttendRow& row, size_t value_dim, const float* sink) noexcept {
  float factor;
  if (sink) {
    const float m = row.max_sum[0] > *sink ? row.max_sum[0] : *sink, keep = exp_one(row.max_sum[0] - m);
    factor = keep / (row.max_sum[1] * keep + exp_one(*sink - m));
  } else {
    factor = 1.0f / row.max_sum[1];
  }
  for (size_t i = 0; i < value_dim; i += 16)
    store_n(row.out + i, value_dim - i, mul(load_n(row.out + i, value_dim - i), set(factor)));
}

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
