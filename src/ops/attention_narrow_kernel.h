// Narrow attention (attention.h) on sixteen lanes. Where the processor multiplies pairs of bf16 numbers, it
// works on pairs; elsewhere it is the float version on rounded numbers, with the same bits. Included once per
// instruction set.
#pragma once

namespace moeflux::MOEFLUX_ISA {
namespace {

#if MOEFLUX_PAIRS

// A pair is one 32-bit word, its first number in the high half, which is multiplied first.
inline uint32_t pair_of(uint32_t first, uint32_t second) { return first << 16 | second; }

// A number of a cache as bf16, which holds an int8 exactly.
inline uint16_t word_at(KvType type, const void* base, size_t at) {
  if (type == KvType::Bf16) return static_cast<const uint16_t*>(base)[at];
  return bf16_of(static_cast<const int8_t*>(base)[at]);
}

// Sixteen pairs of the numbers that begin at `first` and `second`.
inline I pairs_at(KvType type, const void* base, size_t first, size_t second) {
  if (type == KvType::Bf16) {
    const auto* words = static_cast<const uint16_t*>(base);
    return or_i(shl<16>(load_u16(words + first)), load_u16(words + second));
  }
  const auto* bytes = static_cast<const int8_t*>(base);
  return or_i(as_int(to_float(load_i8(bytes + first))), shr<16>(as_int(to_float(load_i8(bytes + second)))));
}

constexpr size_t pair_count(size_t dim) { return (dim + 1) / 2; }  // the last one's second may be nothing: 0
constexpr size_t line_of(size_t dim) { return (dim + 15) / 16 * 16; }

inline void pair_query(const float* q, size_t dim, uint32_t* out) {
  size_t d = 0;
  for (; d + 16 <= dim; d += 16) store_pairs(out + d / 2, load(q + d));
  for (; d < dim; d += 2) out[d / 2] = pair_of(bf16_of(q[d]), d + 1 < dim ? bf16_of(q[d + 1]) : 0);
}

// Keys of one block as pairs of components, [pair_count(key_dim)][kKvBlock].
inline void pair_keys(const KvHead& kv, const std::byte* page, uint32_t* out) {
  const size_t dim = kv.key_dim;
  for (size_t tile = 0; tile < kKvBlock / 16; ++tile) {
    const size_t from = tile * dim * 16;
    uint32_t* to = out + tile * 16;
    for (size_t d = 0; d + 1 < dim; d += 2)
      store_i(to + d / 2 * kKvBlock, pairs_at(kv.type, page + kv.keys, from + d * 16, from + d * 16 + 16));
    for (size_t p = 0; dim % 2 && p < 16; ++p)
      to[dim / 2 * kKvBlock + p] = pair_of(word_at(kv.type, page + kv.keys, from + (dim - 1) * 16 + p), 0);
  }
}

// Values of one block as pairs of positions, [kKvBlock / 2][line_of(value_dim)].
inline void pair_values(const KvHead& kv, const std::byte* page, const uint32_t* keys, uint32_t* out) {
  const size_t dim = kv.value_dim, line = line_of(dim);
  for (size_t p = 0; p < kKvBlock / 2; ++p) {
    uint32_t* to = out + p * line;
    if (!kv.own_values) {
      for (size_t d = 0; d < dim; d += 2) {
        const uint32_t a = keys[d / 2 * kKvBlock + 2 * p], b = keys[d / 2 * kKvBlock + 2 * p + 1];
        to[d] = pair_of(a >> 16, b >> 16);
        to[d + 1] = pair_of(a & 0xffff, b & 0xffff);  // of an odd last line: beyond dim, where none looks
      }
      continue;
    }
    const size_t first = 2 * p * dim, second = first + dim;
    size_t d = 0;
    for (; d + 16 <= dim; d += 16)
      store_i(to + d, pairs_at(kv.type, page + kv.values, first + d, second + d));
    for (; d < dim; ++d)
      to[d] = pair_of(word_at(kv.type, page + kv.values, first + d),
                      word_at(kv.type, page + kv.values, second + d));
  }
}

// Where pairs come from: made before, or, which is faster, on the way from a bf16 cache of whole lines.
struct PairsMade {
  static constexpr bool kAnyWidth = true;
  const uint32_t *key_pairs, *value_pairs;
  size_t line;
  I keys(size_t tile, size_t pair) const { return load_i(key_pairs + pair * kKvBlock + 16 * tile); }
  template <size_t V>
  void values(size_t pair, size_t column, I (&x)[V]) const {
#pragma GCC unroll 4
    for (size_t v = 0; v < V; ++v) x[v] = load_i(value_pairs + pair * line + column + 16 * v);
  }
};

struct PairsOnTheWay {
  static constexpr bool kAnyWidth = false;  // multiples of 64 values
  const uint16_t *key_words, *value_words;
  size_t key_dim, value_dim;
  I keys(size_t tile, size_t pair) const {
    return pair_halves(load_i(key_words + (tile * key_dim + 2 * pair) * 16));
  }
  template <size_t V>
  void values(size_t pair, size_t column, I (&x)[V]) const {
    const uint16_t *first = value_words + 2 * pair * value_dim + column, *second = first + value_dim;
#pragma GCC unroll 2
    for (size_t v = 0; v + 1 < V; v += 2) pair_lines(load_i(first + 16 * v), load_i(second + 16 * v), &x[v]);
  }
};

// The next block, fetched line by line while this one is computed: first its keys, then its values.
class NextBlock {
 public:
  NextBlock(const KvHead& kv, const std::byte* page)
      : at_(page + kv.keys),
        end_(at_ + kKvBlock * kv.key_dim * kv_value_bytes(kv.type)),
        values_(page + kv.values),
        values_end_(values_ + (kv.own_values ? kKvBlock * kv.value_dim * kv_value_bytes(kv.type) : 0)) {}
  template <size_t Lines>
  void fetch() {
    if (at_ >= end_) {
      at_ = values_, end_ = values_end_, values_ = values_end_;
      if (at_ >= end_) return;
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < Lines; ++i) __builtin_prefetch(at_ + 64 * i, 0, 2);  // never faults
    at_ += 64 * Lines;
  }

 private:
  const std::byte *at_, *end_, *values_, *values_end_;
};
struct NoBlock {
  template <size_t Lines>
  void fetch() {}
};

// scores[r][p] = q_r . k_p for R rows and T tiles of positions; components ascending.
template <size_t R, size_t T, class Pairs, class Next>
inline void pair_scores(const Pairs& from, size_t tile, size_t pairs, const uint32_t* q, float* scores,
                        Next& next) {
  F c[R][T];
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (size_t t = 0; t < T; ++t) c[r][t] = zero();
  for (size_t d = 0; d < pairs; ++d) {
    next.template fetch<T>();
    I k[T];
#pragma GCC unroll 4
    for (size_t t = 0; t < T; ++t) k[t] = from.keys(tile + t, d);
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) {
      const I x = set_i(static_cast<int32_t>(q[r * pairs + d]));
#pragma GCC unroll 4
      for (size_t t = 0; t < T; ++t) c[r][t] = dot2(c[r][t], k[t], x);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (size_t t = 0; t < T; ++t) store(scores + r * kKvBlock + 16 * (tile + t), c[r][t]);
}

// out_r += sum_p weights[r][p] * values[p], positions ascending.
template <size_t R, size_t V, bool Whole, class Pairs, class Next>
inline void add_pair_values(const Pairs& from, size_t dim, size_t column, const AttendRow* rows,
                            const uint32_t* weights, Next& next) {
  F c[R][V];
  const size_t left = dim - column;
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; ++v)
      c[r][v] = Whole ? load(rows[r].out + column + 16 * v) : load_n(rows[r].out + column + 16 * v, left);
  for (size_t p = 0; p < kKvBlock / 2; ++p) {
    next.template fetch<V>();
    I x[V];
    from.values(p, column, x);
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) {
      const I w = set_i(static_cast<int32_t>(weights[r * kKvBlock / 2 + p]));
#pragma GCC unroll 4
      for (size_t v = 0; v < V; ++v) c[r][v] = dot2(c[r][v], x[v], w);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (size_t v = 0; v < V; ++v)
      Whole ? store(rows[r].out + column + 16 * v, c[r][v])
            : store_n(rows[r].out + column + 16 * v, left, c[r][v]);
}

// What the rows of one call share.
struct PairScratch {
  uint32_t *queries, *weights;
  float *lanes, *scores;
};

template <size_t R, class Pairs, class Next>
inline void attend_pairs(const KvHead& kv, size_t begin, float scale, const AttendRow* rows, size_t first,
                         const Pairs& from, const PairScratch& s, Next next) {
  constexpr size_t kWide = R == 8 ? 2 : 4;  // their sums stay in registers
  const size_t pairs = pair_count(kv.key_dim);
  for (size_t tile = 0; tile < kKvBlock / 16; tile += kWide)
    pair_scores<R, kWide>(from, tile, pairs, s.queries + first * pairs, s.scores, next);
  for (size_t r = 0; r < R; ++r)
    block_maximum(kv, begin, scale, rows[first + r], s.scores + r * kKvBlock, s.lanes + 16 * (first + r));
  for (size_t r = 0; r < R; ++r) {
    uint32_t* to = s.weights + r * kKvBlock / 2;
    block_weights(kv, begin, rows[first + r], s.scores + r * kKvBlock, s.lanes + 16 * (first + r),
                  [to](size_t t, F p) { store_pairs(to + 8 * t, p); });
  }
  size_t column = 0;
  for (; column + 16 * kWide <= kv.value_dim; column += 16 * kWide)
    add_pair_values<R, kWide, true>(from, kv.value_dim, column, rows + first, s.weights, next);
  if constexpr (Pairs::kAnyWidth)
    for (; column < kv.value_dim; column += 16)
      add_pair_values<R, 1, false>(from, kv.value_dim, column, rows + first, s.weights, next);
}

template <class Pairs, class Next>
inline void attend_block(const KvHead& kv, size_t at, float scale, const AttendRow* rows, size_t n,
                         const Pairs& from, const PairScratch& s, Next next) {
  size_t r = 0;
  if (n >= 8) attend_pairs<8>(kv, at, scale, rows, 0, from, s, next), r = 8;  // has the time to fetch all
  for (; r + 8 <= n; r += 8) attend_pairs<8>(kv, at, scale, rows, r, from, s, NoBlock());
  for (; r + 4 <= n; r += 4) attend_pairs<4>(kv, at, scale, rows, r, from, s, next);
  for (; r < n; ++r) attend_pairs<1>(kv, at, scale, rows, r, from, s, next);
}

void attend_narrow(const KvHead& kv, size_t begin, size_t end, float scale, const AttendRow* rows, size_t n,
                   float* scratch) noexcept {
  if (kv.type == KvType::F32) return attend(kv, begin, end, scale, rows, n, scratch);
  const size_t pairs = pair_count(kv.key_dim), line = line_of(kv.value_dim);
  auto *keys = reinterpret_cast<uint32_t*>(scratch), *values = keys + kKvBlock * pairs;
  PairScratch s{};
  s.queries = values + kKvBlock / 2 * line;
  s.weights = s.queries + n * pairs;
  s.lanes = reinterpret_cast<float*>(s.weights + 8 * kKvBlock / 2);
  s.scores = s.lanes + 16 * n;
  begin_rows(rows, n, kv.value_dim, s.lanes);
  for (size_t r = 0; r < n; ++r) pair_query(rows[r].q, kv.key_dim, s.queries + r * pairs);
  const bool on_the_way =
      kv.type == KvType::Bf16 && kv.own_values && kv.key_dim % 2 == 0 && kv.value_dim % 64 == 0;
  for (size_t at = begin; at < end; at += kKvBlock) {
    std::byte* page = kv.pages[at / kKvBlock];
    const NextBlock next(kv, at + kKvBlock < end ? kv.pages[at / kKvBlock + 1] : page);
    if (on_the_way) {
      attend_block(kv, at, scale, rows, n,
                   PairsOnTheWay{part<uint16_t>(page, kv.keys), part<uint16_t>(page, kv.values), kv.key_dim,
                                 kv.value_dim},
                   s, next);
    } else {
      pair_keys(kv, page, keys);
      pair_values(kv, page, keys, values);
      attend_block(kv, at, scale, rows, n, PairsMade{keys, values, line}, s, next);
    }
  }
  for (size_t r = 0; r < n; ++r) rows[r].max_sum[1] = sum(load(s.lanes + 16 * r));
}

#else

void attend_narrow(const KvHead& kv, size_t begin, size_t end, float scale, const AttendRow* rows, size_t n,
                   float* scratch) noexcept {
  if (kv.type == KvType::F32) return attend(kv, begin, end, scale, rows, n, scratch);
  attend_floats<true>(kv, begin, end, scale, rows, n, scratch);
}

#endif

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
