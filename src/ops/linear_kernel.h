// The kernels of linear.h on sixteen lanes: a lane is a row of the tile. Included once per instruction set.
#pragma once

namespace moeflux::MOEFLUX_ISA {
namespace {

constexpr size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

inline F from_bf16(I bits) { return as_float(shl<16>(bits)); }

inline F from_f16(
    I bits) {  // multiplying rescales the exponent and handles subnormals; then infinity and NaN
  const I magnitude = shl<13>(and_i(bits, set_i(0x7fff))), sign = shl<16>(and_i(bits, set_i(0x8000)));
  const I finite = as_int(mul(as_float(magnitude), set(0x1p112f)));
  const I top = set_i(31 << 23);
  const F value = select(equal(and_i(magnitude, top), top), as_float(or_i(magnitude, set_i(0x7f800000))),
                         as_float(finite));
  return as_float(or_i(as_int(value), sign));
}

inline F from_e4m3(I bits) {
  const I low = and_i(bits, set_i(0x7f));
  const F value = mul(as_float(shl<20>(low)), set(0x1p120f));
  const F known = select(equal(low, set_i(0x7f)), as_float(set_i(0x7fc00000)), value);
  return as_float(or_i(as_int(known), shl<24>(and_i(bits, set_i(0x80)))));
}

inline F from_e8m0(I bits) {
  const F value = select(equal(bits, set_i(0)), set(0x1p-127f), as_float(shl<23>(bits)));
  return select(equal(bits, set_i(255)), as_float(set_i(0x7fc00000)), value);
}

inline F load_scale(ScaleType type, const uint8_t* p) {
  switch (type) {
    case ScaleType::Bf16:
      return from_bf16(load_u16(p));
    case ScaleType::F16:
      return from_f16(load_u16(p));
    case ScaleType::F32:
      return as_float(load_i(p));
    case ScaleType::E8m0:
      return from_e8m0(load_u8(p));
    case ScaleType::None:
      break;
  }
  return set(1);
}

// -- fast

void quantise(const float* x, const Panel& panel, size_t t) noexcept {
  for (size_t at = 0, span = 0; at < panel.cols; at += 64, ++span) {
    const size_t left = panel.cols - at;
    F part[4];
    for (size_t i = 0; i < 4; ++i) part[i] = left > 16 * i ? load_n(x + at + 16 * i, left - 16 * i) : zero();
    const float most = largest(max(max(abs(part[0]), abs(part[1])), max(abs(part[2]), abs(part[3]))));
    const float inverse = most > 0 ? 127.0f / most : 0.0f;
    int8_t* q = panel.q + (span * panel.n + t) * 64;
    I rounded[4];
    for (size_t i = 0; i < 4; ++i) {
      rounded[i] = to_int(min(max(mul(part[i], set(inverse)), set(-127)), set(127)));
      store_i8(q + 16 * i, rounded[i]);
    }
    SpanScale& s = panel.scale[span * panel.n + t];
    s.xs = most / 127.0f;
    s.sum[0] = sum_i(add_i(rounded[0], rounded[1]));
    s.sum[1] = sum_i(add_i(rounded[2], rounded[3]));
    s.xb = s.xs * static_cast<float>(s.sum[0] + s.sum[1]);
    s.xb_half[0] = s.xs * static_cast<float>(s.sum[0]);
    s.xb_half[1] = s.xs * static_cast<float>(s.sum[1]);
  }
}

void remainder(const float* x, const Panel& panel, size_t t, float* r) noexcept {
  for (size_t at = 0; at < panel.cols; at += 16) {
    const size_t row = at / 64 * panel.n + t, left = panel.cols - at;
    const F q = to_float(load_i8(panel.q + row * 64 + at % 64));
    store_n(r + at, left, fma(set(-panel.scale[row].xs), q, load_n(x + at, left)));
  }
}

inline I broadcast4(const int8_t* q) {
  int32_t w;
  __builtin_memcpy(&w, q, 4);
  return set_i(w);
}

#if MOEFLUX_PAIRS && !MOEFLUX_TILES
// As Zen 5 likes it: twelve tiles of 4-bit codes ahead, and past the caches, since weights are met once per
// step.
constexpr size_t kAheadBytes = 6912;
constexpr int kKeepInCaches = 0;
#else
// As measured on Intel's processors: eight tiles ahead, into all caches.
constexpr size_t kAheadBytes = 4608;
constexpr int kKeepInCaches = 3;
#endif

// Never faults, whatever the address.
inline void ask_for(const uint8_t* p) { __builtin_prefetch(p, 0, kKeepInCaches); }

// Where lines are not asked for ahead, one of each tile tells early which pages come next.
inline void tell_page(const uint8_t* p) { __builtin_prefetch(p, 0, 1); }

// Whether beside each line that is met another is asked for, ahead_bytes further. Zero is a request, too: for
// the line itself just before it is loaded, so that it does not go through the other caches.
inline bool asks_ahead(size_t vectors) { return vectors > kMostUnaided; }
inline size_t ahead_bytes(size_t vectors) { return asks_ahead(vectors) ? kAheadBytes : 0; }

struct Codes {  // the 16 unpacked lines of a span
  I line[16];
};

template <Kind K>
inline void load_codes(const uint8_t* p, Codes& c) {
  if constexpr (K == Kind::U8) {
    for (int j = 0; j < 16; ++j) c.line[j] = byte_codes(load_i(p + 64 * j));
  } else {
    for (int j = 0; j < 8; ++j) {
      const I both = load_i(p + 64 * j);
      c.line[j] = low_codes<K>(both);
      c.line[8 + j] = high_codes<K>(both);
    }
  }
}

// out[r][t] = the sum of unpacked code * q over the columns of lines [first, first + Lines), for R row blocks
// and T vectors.
template <Kind K, int Lines, int R, int T>
inline void dot_block(const Codes* codes, int first, const int8_t* const* q, I (&out)[R][T]) {
  if constexpr (kHasDot4) {
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) out[r][t] = set_i(0);
    for (int j = first; j < first + Lines; ++j) {
      I line[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) line[r] = codes[r].line[j];
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const I x = broadcast4(q[t] + 4 * j);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) out[r][t] = dot4(out[r][t], line[r], x);
      }
    }
  } else {
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) out[r][t] = dot_lines<K, Lines>(codes[r].line + first, q[t] + 4 * first);
  }
}

// Unpacked codes of line j of a span, of 16.
template <Kind K>
inline I codes_at(const uint8_t* span, int j) {
  if constexpr (K == Kind::U8) {
    return byte_codes(load_i(span + 64 * j));
  } else {
    const I both = load_i(span + 64 * (j & 7));
    return j < 8 ? low_codes<K>(both) : high_codes<K>(both);
  }
}

// The same for one vector and row block straight from the tile, without unpacked lines in memory: low and
// high half apart. Each line met is one asked for: one by one, since many at once would fill the queue of
// what is under way and hold up loads. Each is loaded once and in order, which prefetchers like best.
template <Kind K, size_t Ahead>
inline void dot_tile(const uint8_t* tile, const int8_t* q, I& low, I& high) {
  if constexpr (kHasDot4) {
    low = high = set_i(0);
    const auto line = [&](int j) {
      if constexpr (Ahead == 0) ask_for(tile + 64 * j);
      I x = load_i(tile + 64 * j);
      tile = after(x, tile);
      if constexpr (Ahead > 0) ask_for(tile + Ahead + 64 * j);
      return x;
    };
    if constexpr (K == Kind::U8) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) low = dot4(low, byte_codes(line(j)), q + 4 * j);
#pragma GCC unroll 8
      for (int j = 8; j < 16; ++j) high = dot4(high, byte_codes(line(j)), q + 4 * j);
    } else {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const I both = line(j);
        low = dot4(low, low_codes<K>(both), q + 4 * j);
        high = dot4(high, high_codes<K>(both), q + 32 + 4 * j);
      }
    }
  } else {
    for (size_t j = 0; j < (K == Kind::U8 ? 16 : 8); ++j) ask_for(tile + Ahead + 64 * j);
    Codes codes;
    load_codes<K>(tile, codes);
    low = dot_lines<K, 8>(codes.line, q);
    high = dot_lines<K, 8>(codes.line + 8, q + 32);
  }
}

// c + products of one group, given the sum over its unpacked codes.
template <Kind K>
inline F add_group(F c, I sums, F scale, F bias, F xs, F xb, I offset) {
  if constexpr (kCodeOffset<K> != 0) sums = add_i(sums, offset);
  c = fma(mul(scale, xs), to_float(sums), c);
  if constexpr (K != Kind::Mx) c = fma(bias, xb, c);
  return c;
}

struct Scales {
  F scale[2], bias[2];
};

template <Kind K, bool Halves>
inline void load_scales(const Tiles& m, const uint8_t* tile, size_t span, Scales& s) {
  for (size_t h = 0; h < (Halves ? 2 : 1); ++h) {
    const uint8_t* at = tile + m.scales_at + (Halves ? 2 * span + h : span * 64 / m.group) * m.group_bytes;
    s.scale[h] = load_scale(m.scale, at);
    if constexpr (K == Kind::Mx)
      s.scale[h] = mul(s.scale[h], set(0.5f));
    else
      s.bias[h] = load_scale(m.scale, at + m.bias_after);
  }
}

template <Kind K, bool Halves>
constexpr size_t kScaleLines = K != Kind::Mx&& Halves ? 2 : 1;  // of 64 bytes, in a tile

inline F sum_chains(const F* c) {
  const F e0 = add(c[0], c[4]), e1 = add(c[1], c[5]), e2 = add(c[2], c[6]), e3 = add(c[3], c[7]);
  return add(add(e0, e2), add(e1, e3));
}

constexpr size_t kFastRows = 4;      // row blocks per pass, of many vectors: one load of activations for all
constexpr size_t kFastVectors = 16;  // vectors per pass: their chains stay in the first cache

constexpr size_t kFewVectors = 4;  // for which AMX tiles do not pay
#if MOEFLUX_TILES
constexpr size_t kMostInRegisters = smaller(kMostFew, kFewVectors);
#else
constexpr size_t kMostInRegisters = kMostFew;
#endif

struct FastBlock {  // R row blocks and n vectors of a product
  const Tiles& m;
  const uint8_t* tile[kFastRows];
  size_t rows[kFastRows];
  const Panel& x;
  size_t at[kFastVectors];  // the vectors' places in the panel
  size_t n;
  float* out[kFastVectors];
  size_t ahead;  // bytes
};

// p += n, as one addition: of a loop that is written out, the compiler would keep every place apart, in more
// registers than there are.
template <class T>
inline void step(T*& p, size_t n) {
  p += n;
  __asm__("" : "+r"(p));
}

// One vector: weights are met once, so everything stays in registers, and row blocks follow each other as one
// stream: one at a time comes faster than several side by side. What the format says and which lines are
// asked for is known to the compiler, since every instruction beside the loads delays the next ones.
template <MatrixFormat Format, size_t Ahead>
struct FastVector {
  static constexpr Kind kKind = Format.type == MatrixType::Mxfp4     ? Kind::Mx
                                : Format.type == MatrixType::Affine4 ? Kind::U4
                                                                     : Kind::U8;
  static constexpr size_t kSpans = Format.tile_cols() / 64;
  static constexpr size_t kSpanBytes = Format.tile_code_bytes() / kSpans;
  static constexpr size_t kGroups = Format.tile_groups(), kGroupBytes = kTileRows * Format.scale_bytes();
  static constexpr size_t kScaleLines = (Format.tile_bytes() - Format.tile_code_bytes() + 63) / 64;

  const size_t spans;
  const int8_t* const q;  // of the first span; the next ones are `stride` spans apart
  const SpanScale* const scale;
  const size_t stride;

  static F group_scale(const uint8_t* tile, size_t group) {
    const F s = load_scale(Format.scale, tile + Format.tile_code_bytes() + group * kGroupBytes);
    return kKind == Kind::Mx ? mul(s, set(0.5f)) : s;
  }
  static F add(F c, I sums, const uint8_t* tile, size_t group, F xs, float xb, int32_t sum) {
    F bias = zero();
    if constexpr (kKind != Kind::Mx)
      bias = load_scale(Format.scale,
                        tile + Format.tile_code_bytes() + Format.tile_scale_bytes() + group * kGroupBytes);
    return add_group<kKind>(c, sums, group_scale(tile, group), bias, xs, set(xb),
                            set_i(kCodeOffset<kKind> * sum));
  }

  // c[k] += the products of span k, of a tile's spans those of which there are `left`.
  void add_tile(const uint8_t* tile, size_t left, const int8_t* v, const SpanScale* x, F* c) const {
    I low[kSpans], high[kSpans];
    if constexpr (Ahead == 0) tell_page(tile + kAheadBytes);
#pragma GCC unroll 2
    for (size_t i = 0; i < kSpans && i < left; ++i)
      dot_tile<kKind, Ahead>(tile + i * kSpanBytes, v + i * stride * 64, low[i], high[i]);
    for (size_t l = 0; Ahead > 0 && l < kScaleLines; ++l)
      ask_for(tile + Format.tile_code_bytes() + Ahead + 64 * l);
#pragma GCC unroll 2
    for (size_t i = 0; i < kSpans && i < left; ++i, x += stride) {
      const F xs = set(x->xs);
      if constexpr (kGroups == 2) {
        c[i] = add(c[i], low[i], tile, 0, xs, x->xb_half[0], x->sum[0]);
        c[i] = add(c[i], high[i], tile, 1, xs, x->xb_half[1], x->sum[1]);
      } else {
        c[i] = add(c[i], add_i(low[i], high[i]), tile, 0, xs, x->xb, x->sum[0] + x->sum[1]);
      }
    }
  }

  [[gnu::always_inline]] F row_block(const uint8_t* tile) const {
    F c[8];
#pragma GCC unroll 8
    for (F& chain : c) chain = zero();
    const int8_t* v = q;
    const SpanScale* x = scale;
    for (size_t left = spans; left > 0; left -= smaller(left, 8)) {
#pragma GCC unroll 8
      for (size_t k = 0; k < 8; k += kSpans) {
        if (k >= left) break;
        add_tile(tile, left - k, v, x, c + k);
        step(tile, Format.tile_bytes()), step(v, kSpans * stride * 64), step(x, kSpans * stride);
      }
    }
    return sum_chains(c);
  }

  [[gnu::noinline]] static void run(const Tiles& m, size_t block, size_t blocks, const Panel& x, size_t at,
                                    float* out) {
    const FastVector v{(m.cols + 63) / 64, x.q + at * 64, x.scale + at, x.n};
    for (size_t b = block; b < block + blocks; ++b)
      store_n(out + 16 * (b - block), smaller(16, m.rows - 16 * b),
              v.row_block(m.data + b * m.n_tiles * m.tile_bytes));
  }
};

// Up to T vectors, as the experts of a few texts have: weights come faster than they could be unpacked into
// memory first, so that sums stay in registers.
template <Kind K, bool Halves, int T>
inline void fast_few(FastBlock& b) {
  const Tiles& m = b.m;
  alignas(64) float c[8][T][16];
  for (size_t k = 0; k < 8; ++k)
    for (int t = 0; t < T; ++t) store(c[k][t], zero());
  size_t place[T];
  for (size_t t = 0; t < T; ++t) place[t] = b.at[smaller(t, b.n - 1)];
  const size_t spans = (m.cols + 63) / 64;
  for (size_t s = 0; s < spans;) {
    for (size_t in = 0; in < m.tile_spans && s < spans; ++in, ++s) {
      const uint8_t* codes = b.tile[0] + in * m.span_bytes;
      const int8_t* q = b.x.q + s * b.x.n * 64;
      const SpanScale* scales = b.x.scale + s * b.x.n;
      Scales w;
      load_scales<K, Halves>(m, b.tile[0], in, w);
      const uint8_t *ahead = codes + b.ahead, *scales_ahead = b.tile[0] + m.scales_at + b.ahead;
      for (size_t l = 0; l < kScaleLines<K, Halves>; ++l) ask_for(scales_ahead + 64 * l);
      for (int h = 0; h < (Halves ? 2 : 1); ++h) {
        I sums[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) sums[t] = set_i(0);
#pragma GCC unroll 16
        for (int j = 8 * h; j < (Halves ? 8 * h + 8 : 16); ++j) {
          const I line = codes_at<K>(codes, j);
          ahead = after(sums[0], ahead);
          if (K == Kind::U8 || j < 8) ask_for(ahead + 64 * j);
#pragma GCC unroll 8
          for (int t = 0; t < T; ++t) sums[t] = dot4(sums[t], line, q + place[t] * 64 + 4 * j);
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const SpanScale& x = scales[place[t]];
          const I offset = set_i(kCodeOffset<K> * (Halves ? x.sum[h] : x.sum[0] + x.sum[1]));
          float* chain = c[s & 7][t];
          store(chain, add_group<K>(load(chain), sums[t], w.scale[h], w.bias[h], set(x.xs),
                                    set(Halves ? x.xb_half[h] : x.xb), offset));
        }
      }
    }
    b.tile[0] += m.tile_bytes;
  }
  for (size_t t = 0; t < b.n; ++t) {
    F chains[8];
    for (size_t k = 0; k < 8; ++k) chains[k] = load(c[k][t]);
    store_n(b.out[t], b.rows[0], sum_chains(chains));
  }
}

template <Kind K, bool Halves, int R, int T>
inline void fast_span(const FastBlock& b, const Codes* codes, const Scales* w, size_t s, size_t first,
                      float (*chain)[kFastRows][16]) {
  const int8_t* q[T];
  const SpanScale* xs[T];
  for (int t = 0; t < T; ++t) {
    q[t] = b.x.q + (s * b.x.n + b.at[first + t]) * 64;
    xs[t] = b.x.scale + s * b.x.n + b.at[first + t];
  }
  I sums[R][T];
  for (int h = 0; h < (Halves ? 2 : 1); ++h) {
    dot_block<K, Halves ? 8 : 16, R, T>(codes, 8 * h, q, sums);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const SpanScale& x = *xs[t];
      const F scale = set(x.xs), sum = set(Halves ? x.xb_half[h] : x.xb);
      const I offset = set_i(kCodeOffset<K> * (Halves ? x.sum[h] : x.sum[0] + x.sum[1]));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* c = chain[first + t][r];
        store(c, add_group<K>(load(c), sums[r][t], w[r].scale[h], w[r].bias[h], scale, sum, offset));
      }
    }
  }
}

#if MOEFLUX_TILES
// All vectors of the block at once.
template <Kind K, bool Halves, int R>
inline void tile_span(const FastBlock& b, const Codes* codes, const Scales* w, size_t s,
                      float (*chain)[kFastRows][16]) {
  alignas(64) int8_t q[kFastVectors * 64];
  alignas(64) int32_t sums[R][kFastVectors * 16];
  for (size_t t = 0; t < kFastVectors; ++t)  // vectors beyond n repeat the first one; nobody reads their sums
    store(reinterpret_cast<float*>(q + 64 * t),
          as_float(load_i(b.x.q + (s * b.x.n + b.at[t < b.n ? t : 0]) * 64)));
  for (int h = 0; h < (Halves ? 2 : 1); ++h) {
    for (int r = 0; r < R; ++r) multiply_tiles<Halves ? 8 : 16>(codes[r].line, 8 * h, q, sums[r]);
    for (size_t t = 0; t < b.n; ++t) {
      const SpanScale& x = b.x.scale[s * b.x.n + b.at[t]];
      const F scale = set(x.xs), sum = set(Halves ? x.xb_half[h] : x.xb);
      const I offset = set_i(kCodeOffset<K> * (Halves ? x.sum[h] : x.sum[0] + x.sum[1]));
      for (int r = 0; r < R; ++r) {
        float* c = chain[t][r];
        store(c, add_group<K>(load(c), load_i(sums[r] + 16 * t), w[r].scale[h], w[r].bias[h], scale, sum,
                              offset));
      }
    }
  }
}
#endif

template <Kind K, bool Halves, int R>
inline void fast_vectors(FastBlock& b) {
  const Tiles& m = b.m;
#if MOEFLUX_TILES
  const TileSetup tiles;
#endif
  alignas(64) float c[8][kFastVectors][kFastRows][16];
  for (size_t k = 0; k < 8; ++k)
    for (size_t t = 0; t < b.n; ++t)
      for (int r = 0; r < R; ++r) store(c[k][t][r], zero());
  const size_t spans = (m.cols + 63) / 64;
  for (size_t s = 0; s < spans;) {
    for (size_t in = 0; in < m.tile_spans && s < spans; ++in, ++s) {
      Codes codes[R];
      Scales w[R];
      for (int r = 0; r < R; ++r) {
        load_codes<K>(b.tile[r] + in * m.span_bytes, codes[r]);
        load_scales<K, Halves>(m, b.tile[r], in, w[r]);
      }
#if MOEFLUX_TILES
      if (b.n > kFewVectors) {
        tile_span<K, Halves, R>(b, codes, w, s, c[s & 7]);
        continue;
      }
#endif
      size_t t = 0;
      for (; t + kDotVectors <= b.n; t += kDotVectors)
        fast_span<K, Halves, R, kDotVectors>(b, codes, w, s, t, c[s & 7]);
      for (; t < b.n; ++t) fast_span<K, Halves, R, 1>(b, codes, w, s, t, c[s & 7]);
    }
    for (int r = 0; r < R; ++r) b.tile[r] += m.tile_bytes;
  }
  for (size_t t = 0; t < b.n; ++t)
    for (int r = 0; r < R; ++r) {
      F chains[8];
      for (size_t k = 0; k < 8; ++k) chains[k] = load(c[k][t][r]);
      store_n(b.out[t] + 16 * r, b.rows[r], sum_chains(chains));
    }
}

// Whether there is a kernel for so few vectors; it has been run then.
template <Kind K, bool Halves>
inline bool in_registers(FastBlock& b) {
  if (b.n > kMostInRegisters) return false;
  if constexpr (kMostInRegisters >= 2) {
    if (b.n == 2) return fast_few<K, Halves, 2>(b), true;
  }
  if constexpr (kMostInRegisters >= 4) {
    if (b.n <= 4) return fast_few<K, Halves, 4>(b), true;
  }
  if constexpr (kMostInRegisters >= 8) fast_few<K, Halves, 8>(b);
  return true;
}

template <Kind K, bool Halves, int R>
inline void fast_rows(const Tiles& m, size_t block, const Panel& x, const uint32_t* pick, size_t n,
                      float* out, size_t out_stride) {
  for (size_t first = 0; first < n; first += kFastVectors) {
    FastBlock b{m, {}, {}, x, {}, smaller(kFastVectors, n - first), {}, ahead_bytes(n)};
    for (int r = 0; r < R; ++r) {
      b.tile[r] = m.data + (block + r) * m.n_tiles * m.tile_bytes;
      b.rows[r] = smaller(16, m.rows - 16 * (block + r));
    }
    for (size_t t = 0; t < b.n; ++t) {
      b.at[t] = pick ? pick[first + t] : first + t;
      b.out[t] = out + (first + t) * out_stride;
    }
    if constexpr (R == 1) {
      if (in_registers<K, Halves>(b)) continue;
    }
    fast_vectors<K, Halves, R>(b);
  }
}

template <Kind K, bool Halves>
inline void fast_blocks(const Tiles& m, size_t block, size_t blocks, const Panel& x, const uint32_t* pick,
                        size_t n, float* out, size_t out_stride) {
  size_t b = 0;
  for (; n > kMostInRegisters && b + kFastRows <= blocks; b += kFastRows)
    fast_rows<K, Halves, kFastRows>(m, block + b, x, pick, n, out + 16 * b, out_stride);
  for (; b < blocks; ++b) fast_rows<K, Halves, 1>(m, block + b, x, pick, n, out + 16 * b, out_stride);
}

template <MatrixFormat Format>
inline void format_vector(const Tiles& m, size_t block, size_t blocks, const Panel& x, size_t at,
                          float* out) {
  asks_ahead(1) ? FastVector<Format, kAheadBytes>::run(m, block, blocks, x, at, out)
                : FastVector<Format, 0>::run(m, block, blocks, x, at, out);
}

// Of all formats with integer codes, the one that the matrix has.
template <int Bits, uint16_t Group>
inline void affine_vector(const Tiles& m, size_t block, size_t blocks, const Panel& x, size_t at,
                          float* out) {
  if (m.scale == ScaleType::Bf16)
    return format_vector<MatrixFormat::affine(Bits, Group)>(m, block, blocks, x, at, out);
  if (m.scale == ScaleType::F16)
    return format_vector<MatrixFormat::affine(Bits, Group, ScaleType::F16)>(m, block, blocks, x, at, out);
  return format_vector<MatrixFormat::affine(Bits, Group, ScaleType::F32)>(m, block, blocks, x, at, out);
}

template <int Bits>
inline void affine_vector(const Tiles& m, size_t block, size_t blocks, const Panel& x, size_t at,
                          float* out) {
  if (m.group == 32) return affine_vector<Bits, 32>(m, block, blocks, x, at, out);
  if (m.group == 64) return affine_vector<Bits, 64>(m, block, blocks, x, at, out);
  return affine_vector<Bits, 128>(m, block, blocks, x, at, out);
}

inline void fast_vector(const Tiles& m, size_t block, size_t blocks, const Panel& x, size_t at, float* out) {
  if (m.type == MatrixType::Mxfp4) return format_vector<MatrixFormat::mxfp4()>(m, block, blocks, x, at, out);
  m.type == MatrixType::Affine4 ? affine_vector<4>(m, block, blocks, x, at, out)
                                : affine_vector<8>(m, block, blocks, x, at, out);
}

void linear_fast(const Tiles& m, size_t block, size_t blocks, const Panel& x, const uint32_t* pick, size_t n,
                 float* out, size_t out_stride) noexcept {
  if (n == 1) return fast_vector(m, block, blocks, x, pick ? pick[0] : 0, out);
  if (m.type == MatrixType::Mxfp4)
    return fast_blocks<Kind::Mx, true>(m, block, blocks, x, pick, n, out, out_stride);
  if (m.type == MatrixType::Affine4)
    return m.group == 32 ? fast_blocks<Kind::U4, true>(m, block, blocks, x, pick, n, out, out_stride)
                         : fast_blocks<Kind::U4, false>(m, block, blocks, x, pick, n, out, out_stride);
  return m.group == 32 ? fast_blocks<Kind::U8, true>(m, block, blocks, x, pick, n, out, out_stride)
                       : fast_blocks<Kind::U8, false>(m, block, blocks, x, pick, n, out, out_stride);
}

// -- exact

// The 64 columns of one span as floats, one line of 16 rows per column.
inline void decode_span(const Tiles& m, const uint8_t* tile, size_t span, float* lines) {
  const uint8_t* codes = tile + span * m.span_bytes;
  switch (m.type) {
    case MatrixType::F32:
      for (size_t c = 0; c < 64; ++c) store(lines + 16 * c, as_float(load_i(codes + 64 * c)));
      return;
    case MatrixType::Bf16:
      for (size_t c = 0; c < 64; c += 2) {
        const I both = load_i(codes + 32 * c);
        store(lines + 16 * c, as_float(shl<16>(both)));
        store(lines + 16 * c + 16, as_float(and_i(both, set_i(static_cast<int32_t>(0xffff0000)))));
      }
      return;
    case MatrixType::F16:
      for (size_t c = 0; c < 64; c += 2) {
        const I both = load_i(codes + 32 * c);
        store(lines + 16 * c, from_f16(and_i(both, set_i(0xffff))));
        store(lines + 16 * c + 16, from_f16(shr<16>(both)));
      }
      return;
    default:
      break;
  }
  constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  const bool four = m.type == MatrixType::Affine4 || m.type == MatrixType::Mxfp4;
  F scale = zero(), bias = zero();
  for (size_t c = 0; c < 64; ++c) {
    const size_t column = span * 64 + c;
    if (column % m.group == 0 || c == 0) {
      const uint8_t* at = tile + m.scales_at + column / m.group * m.group_bytes;
      scale = load_scale(m.scale, at);
      if (m.type == MatrixType::Affine4 || m.type == MatrixType::Affine8)
        bias = load_scale(m.scale, at + m.bias_after);
    }
    const size_t line = (four ? c % 32 : c) / 4;
    I word = load_i(codes + 64 * line);
    switch (c % 4) {
      case 1:
        word = shr<8>(word);
        break;
      case 2:
        word = shr<16>(word);
        break;
      case 3:
        word = shr<24>(word);
        break;
      default:
        break;
    }
    if (four) word = c < 32 ? and_i(word, set_i(15)) : and_i(shr<4>(word), set_i(15));
    word = and_i(word, set_i(255));
    F value;
    if (m.type == MatrixType::Fp8) {
      value = mul(from_e4m3(word), scale);
    } else if (m.type == MatrixType::Mxfp4) {
      alignas(64) int32_t code[16];
      alignas(64) float decoded[16];
      store(reinterpret_cast<float*>(code), as_float(word));
      for (int i = 0; i < 16; ++i) decoded[i] = kE2m1Values[code[i]];
      value = mul(load(decoded), scale);
    } else {
      value = add(mul(scale, to_float(word)), bias);
    }
    store(lines + 16 * c, value);
  }
}

constexpr size_t kExactVectors = 16;

inline void exact_block(const Tiles& m, const uint8_t* tile, const Panel& x, const uint32_t* pick,
                        size_t first, size_t n, size_t rows, float* out, size_t out_stride) {
  alignas(64) float c[kExactVectors][16][16];
  alignas(64) float lines[64 * 16];
  const size_t spans = (m.cols + 63) / 64;
  for (size_t t = 0; t < n; ++t)
    for (size_t l = 0; l < 16; ++l) store(c[t][l], zero());
  for (size_t s = 0; s < spans; tile += m.tile_bytes)
    for (size_t in = 0; in < m.tile_spans && s < spans; ++in, ++s) {
      decode_span(m, tile, in, lines);
      const size_t left = smaller(64, m.cols - 64 * s);
      for (size_t t = 0; t < n; ++t) {
        const float* v = x.f + (pick ? pick[first + t] : first + t) * x.stride + 64 * s;
        for (size_t l = 0; l < 16 && l < left; ++l) {
          F a = load(c[t][l]);
          for (size_t k = l; k < left; k += 16) a = add(a, mul(load(lines + 16 * k), set(v[k])));
          store(c[t][l], a);
        }
      }
    }
  for (size_t t = 0; t < n; ++t) {
    for (size_t half = 8; half > 0; half /= 2)
      for (size_t l = 0; l < half; ++l) store(c[t][l], add(load(c[t][l]), load(c[t][l + half])));
    store_n(out + (first + t) * out_stride, rows, load(c[t][0]));
  }
}

// Sixteen partial sums: halves are added until one is left.
inline F sum_partial(F (&c)[16]) {
#pragma GCC unroll 8
  for (size_t l = 0; l < 8; ++l) c[l] = add(c[l], c[l + 8]);
  const F a = add(add(c[0], c[4]), add(c[2], c[6])), b = add(add(c[1], c[5]), add(c[3], c[7]));
  return add(a, b);
}

// The weights of four columns of 16 rows, given their codes in one line: bytes, or the lower or upper half of
// them.
template <int Bits, int Shift>
inline void decode_columns(I codes, F scale, F bias, F* w) {
  const I mask = set_i((1 << Bits) - 1);
  const I code[] = {shr<Shift>(codes), shr<8 + Shift>(codes), shr<16 + Shift>(codes), shr<24 + Shift>(codes)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) w[i] = add(mul(scale, to_float(and_i(code[i], mask))), bias);
}

// The weights of quarter Q of a span, 16 columns.
template <MatrixType Type, int Q>
inline void decode_quarter(const uint8_t* span, const uint8_t* ahead, F scale, F bias, F (&w)[16]) {
#pragma GCC unroll 16
  for (int l = 0; l < 16; l += 4) {
    const int line = (Type == MatrixType::Affine4 ? Q % 2 : Q) * 4 + l / 4;
    if constexpr (Type == MatrixType::Affine4) {
      if (Q < 2) ask_for(ahead + line * 64);
      decode_columns<4, Q / 2 * 4>(load_i(span + line * 64), scale, bias, w + l);
    } else if constexpr (Type == MatrixType::Affine8) {
      ask_for(ahead + line * 64);
      decode_columns<8, 0>(load_i(span + line * 64), scale, bias, w + l);
    } else {
      for (int i = l; i < l + 4; i += 2) {  // bf16
        ask_for(ahead + (Q * 16 + i) * 32);
        const I both = load_i(span + (Q * 16 + i) * 32);
        w[i] = as_float(shl<16>(both));
        w[i + 1] = as_float(and_i(both, set_i(static_cast<int32_t>(0xffff0000))));
      }
    }
  }
}

// One vector: weights are met once, so that they go straight to sums in registers.
template <MatrixType Type>
struct ExactVector {
  const Tiles& m;
  const float* x;
  size_t ahead;  // bytes
  F c[16];

  template <int Q>
  void add_quarter(const uint8_t* tile, size_t in, size_t column) {
    if (column >= m.cols) return;
    F w[16], scale = zero(), bias = zero();
    if constexpr (Type != MatrixType::Bf16) {
      const uint8_t* at = tile + m.scales_at + (in * 64 + Q * 16) / m.group * m.group_bytes;
      scale = load_scale(m.scale, at);
      bias = load_scale(m.scale, at + m.bias_after);
    }
    const uint8_t* span = tile + in * m.span_bytes;
    decode_quarter<Type, Q>(span, span + ahead, scale, bias, w);
    const size_t left = m.cols - column;
#pragma GCC unroll 16
    for (size_t l = 0; l < 16; ++l)
      if (l < left) c[l] = add(c[l], mul(w[l], set(x[column + l])));
  }

  void run(const uint8_t* tile, size_t rows, float* out) {
#pragma GCC unroll 16
    for (F& sum : c) sum = zero();
    for (size_t column = 0; column < m.cols; tile += m.tile_bytes)
      for (size_t in = 0; in < m.tile_spans; ++in, column += 64) {
        add_quarter<0>(tile, in, column);
        add_quarter<1>(tile, in, column + 16);
        add_quarter<2>(tile, in, column + 32);
        add_quarter<3>(tile, in, column + 48);
      }
    store_n(out, rows, sum_partial(c));
  }
};

template <MatrixType Type>
inline void exact_vector(const Tiles& m, size_t block, size_t blocks, const float* x, float* out) {
  for (size_t b = block; b < block + blocks; ++b)
    ExactVector<Type>{m, x, ahead_bytes(1), {}}.run(m.data + b * m.n_tiles * m.tile_bytes,
                                                    smaller(16, m.rows - 16 * b), out + 16 * (b - block));
}

void linear_exact(const Tiles& m, size_t block, size_t blocks, const Panel& x, const uint32_t* pick, size_t n,
                  float* out, size_t out_stride) noexcept {
  if (n == 1) {
    const float* v = x.f + (pick ? pick[0] : 0) * x.stride;
    if (m.type == MatrixType::Bf16) return exact_vector<MatrixType::Bf16>(m, block, blocks, v, out);
    if (m.type == MatrixType::Affine4) return exact_vector<MatrixType::Affine4>(m, block, blocks, v, out);
    if (m.type == MatrixType::Affine8) return exact_vector<MatrixType::Affine8>(m, block, blocks, v, out);
  }
  for (size_t b = block; b < block + blocks; ++b) {
    const uint8_t* tile = m.data + b * m.n_tiles * m.tile_bytes;
    const size_t rows = smaller(16, m.rows - 16 * b);
    for (size_t t = 0; t < n; t += kExactVectors)
      exact_block(m, tile, x, pick, t, smaller(kExactVectors, n - t), rows, out + 16 * (b - block),
                  out_stride);
  }
}

}  // namespace
}  // namespace moeflux::MOEFLUX_ISA
