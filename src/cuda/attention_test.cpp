#include "cuda/attention.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "base/numbers.h"
#include "cuda/flash.h"
#include "cuda/vectors_test.h"
#include "ops/pointwise.h"

namespace moeflux::cuda {
namespace {

class CudaAttention : public OnDevice {};

struct Case {
  size_t heads, kv_heads, dim, window, positions;
  bool sinks, gated;
  size_t value_dim = 0;  // else a value is the first components of its key
  bool own_values() const { return value_dim == 0; }
  size_t out_dim() const { return own_values() ? dim : value_dim; }
};

size_t first_seen(const Case& c, size_t last) {
  return c.window && last + 1 > c.window ? last + 1 - c.window : 0;
}

// Rows of one form, as floats that have its values exactly.
struct Rows {
  Rows(std::vector<float> x, size_t dim, KvType type) : values(std::move(x)) {
    for (size_t row = 0; row < values.size(); row += dim) {
      float most = 0;
      for (size_t d = 0; d < dim; ++d) most = std::max(most, std::abs(values[row + d]));
      scales.push_back(most / 127);
      for (size_t d = 0; d < dim; ++d) {
        float& v = values[row + d];
        if (type == KvType::Bf16) {
          put(float_to_bf16(v));
          v = bf16_to_float(float_to_bf16(v));
        } else if (type == KvType::Q8) {
          const float inverse = scales.back() > 0 ? 1 / scales.back() : 0;
          put(static_cast<int8_t>(std::nearbyint(v * inverse)));
          v = std::nearbyint(v * inverse) * scales.back();
        } else {
          put(v);
        }
      }
    }
  }
  template <class T>
  void put(T value) {
    const auto b = std::as_bytes(std::span(&value, 1));
    bytes.insert(bytes.end(), b.begin(), b.end());
  }
  std::vector<float> values, scales;
  std::vector<std::byte> bytes;
};

// One sequence whose cache holds `positions` keys and values, in pages that lie in no order. Where nothing
// may be read there are no numbers: rows after the last position, and pages that no query of the last n
// positions sees.
struct Context {
  Context(const Case& c, KvType type, size_t n)
      : rows(c.positions),
        k(noise_vector(c.kv_heads * rows * c.dim, 1), c.dim, type),
        v(c.own_values() ? noise_vector(c.kv_heads * rows * c.dim, 2) : k.values, c.dim, type) {
    const size_t row_bytes = c.dim * kv_value_bytes(type), head_rows = c.kv_heads * kKvPage;
    place.group = 1;
    place.n_groups = 3;
    place.own_values = c.own_values();
    place.keys = 256;
    place.values = c.own_values() ? place.keys + head_rows * row_bytes : place.keys;
    place.key_scale = place.values + head_rows * row_bytes;
    place.value_scale = c.own_values() ? place.key_scale + head_rows * sizeof(float) : place.key_scale;
    page_bytes = (place.value_scale + head_rows * sizeof(float) + 255) / 256 * 256;
    const size_t n_pages = (rows + kKvPage - 1) / kKvPage, first = first_seen(c, rows - n) / kKvPage;
    std::vector<std::byte> memory(n_pages * page_bytes, std::byte{0xff});
    for (size_t p = first * kKvPage; p < rows; ++p)
      for (size_t head = 0; head < c.kv_heads; ++head) {
        const size_t from = head * rows + p, to = head * kKvPage + p % kKvPage;
        std::byte* page = memory.data() + index(p / kKvPage) * page_bytes;
        std::copy_n(&k.bytes[from * row_bytes], row_bytes, page + place.keys + to * row_bytes);
        std::memcpy(page + place.key_scale + to * sizeof(float), &k.scales[from], sizeof(float));
        if (!c.own_values()) continue;
        std::copy_n(&v.bytes[from * row_bytes], row_bytes, page + place.values + to * row_bytes);
        std::memcpy(page + place.value_scale + to * sizeof(float), &v.scales[from], sizeof(float));
      }
    pages.emplace(memory);
    std::vector<std::byte*> entries(n_pages * place.n_groups);
    for (size_t i = first; i < n_pages; ++i)
      entries[i * place.n_groups + place.group] = pages->get() + index(i) * page_bytes;
    table.emplace(entries);
  }
  size_t index(size_t page) const {  // of its memory
    const size_t n = (rows + kKvPage - 1) / kKvPage;
    return page % 2 ? page / 2 : n - 1 - page / 2;
  }
  size_t rows;
  Rows k, v;
  KvPlace place{};
  size_t page_bytes = 0;
  std::optional<DeviceArray<std::byte>> pages;
  std::optional<DeviceArray<std::byte*>> table;
};

// The queries are those of the last n positions.
std::vector<float> reference(const Case& c, const Context& x, const std::vector<float>& q,
                             const std::vector<float>& sinks, const std::vector<float>& gate, size_t n) {
  const size_t out_dim = c.out_dim();
  std::vector<float> out(n * c.heads * out_dim);
  for (size_t t = 0; t < n; ++t)
    for (size_t h = 0; h < c.heads; ++h) {
      const size_t last = c.positions - n + t, low = first_seen(c, last),
                   at = h / (c.heads / c.kv_heads) * x.rows, from = (t * c.heads + h) * c.dim,
                   to = (t * c.heads + h) * out_dim;
      std::vector<float> s;
      for (size_t p = low; p <= last; ++p) {
        double sum = 0;
        for (size_t d = 0; d < c.dim; ++d) sum += double{q[from + d]} * x.k.values[(at + p) * c.dim + d];
        s.push_back(static_cast<float>(sum / std::sqrt(static_cast<double>(c.dim))));
      }
      c.sinks ? softmax_ref(s.data(), s.size(), sinks[h]) : softmax_ref(s.data(), s.size());
      for (size_t d = 0; d < out_dim; ++d) {
        double sum = 0;
        for (size_t p = low; p <= last; ++p) sum += double{s[p - low]} * x.v.values[(at + p) * c.dim + d];
        out[to + d] = static_cast<float>(sum) * (c.gated ? sigmoid(gate[to + d]) : 1.0f);
      }
    }
  return out;
}

struct Trial {
  Trial(const Case& c, KvType type, size_t n)
      : context(c, type, n),
        q(noise_vector(n * c.heads * c.dim, 3, 3)),
        sinks(noise_vector(c.heads, 4)),
        gate(noise_vector(n * c.heads * c.out_dim(), 5)),
        want(reference(c, context, q, sinks, gate, n)),
        dq(q),
        dsinks(sinks),
        dgate(gate),
        out(std::vector<float>(n * c.heads * c.out_dim()), c.heads * c.out_dim()) {
    std::vector<TokenInfo> info;
    for (size_t t = 0; t < n; ++t)
      info.push_back({context.table->get(), 0, static_cast<uint32_t>(c.positions - n + t)});
    tokens.emplace(info);
    a = {.n = n,
         .n_heads = c.heads,
         .n_kv_heads = c.kv_heads,
         .key_dim = c.dim,
         .value_dim = c.out_dim(),
         .q = dq.get(),
         .tokens = tokens->get(),
         .place = context.place,
         .window = c.window,
         .kv = type,
         .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.dim))),
         .sinks = c.sinks ? dsinks.get() : nullptr,
         .gate = c.gated ? dgate.get() : nullptr,
         .gate_stride = c.heads * c.out_dim(),
         .gate_head = c.out_dim(),
         .out = out.vectors.f};
  }
  // The newest keys and values as they are in the cache already: what else reads them meanwhile sees the
  // same.
  PrepareHeads prepare(const Case& c, KvType type = KvType::Bf16) {
    std::vector<float> k, v;
    for (size_t t = 0; t < a.n; ++t)
      for (size_t h = 0; h < c.kv_heads; ++h)
        for (size_t d = 0; d < c.dim; ++d) {
          const size_t at = (h * context.rows + c.positions - a.n + t) * c.dim + d;
          k.push_back(context.k.values[at]);
          v.push_back(context.v.values[at]);
        }
    dk.emplace(k);
    dv.emplace(v);
    return {.n = a.n,
            .n_heads = c.heads,
            .n_kv_heads = c.kv_heads,
            .dim = c.dim,
            .q = dq.get(),
            .k = dk->get(),
            .v = dv->get(),
            .q_stride = c.heads * c.dim,
            .q_head = c.dim,
            .q_norm = nullptr,
            .k_norm = nullptr,
            .whole = false,
            .inverse = nullptr,
            .eps = 0,
            .clip = 0,
            .rope = {nullptr, nullptr, 0, false},
            .tokens = tokens->get(),
            .place = context.place,
            .kv = type,
            .q_out = nullptr};
  }
  std::optional<DeviceArray<float>> dk, dv;
  Context context;
  std::vector<float> q, sinks, gate, want;
  DeviceArray<float> dq, dsinks, dgate;
  TestVectors out;
  std::optional<DeviceArray<TokenInfo>> tokens;
  Attend a{};
};

void expect_close(const std::vector<float>& got, const std::vector<float>& want, float bound, const Case& c) {
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], bound)
        << "head size " << c.dim << ", " << c.positions << " positions, at " << i;
}

TEST_F(CudaAttention, PartsSideBySideAndInTurnHaveTheSameBits) {
  for (const KvType type : {KvType::F32, KvType::Bf16, KvType::Q8})
    for (const Case& c :
         {Case{4, 2, 32, 0, 1, false, false}, Case{3, 1, 20, 0, 300, true, false},
          Case{6, 2, 64, 50, 290, false, true}, Case{2, 2, 576, 0, 129, false, false},
          Case{2, 1, 64, 70, 640, false, false}, Case{5, 1, 144, 0, 200, false, false, 128}}) {
      const size_t n = std::min<size_t>(c.positions, 3);
      Trial trial(c, type, n);
      attend(trial.a, nullptr);
      const std::vector<float> in_turn = trial.out.f.values();
      expect_close(in_turn, trial.want, 2e-5f, c);
      trial.a.n_parts = c.positions / kAttendPart + 1;
      const DeviceArray<float> parts(attend_parts_floats(n, c.heads, c.out_dim(), trial.a.n_parts));
      trial.a.parts = parts.get();
      attend(trial.a, nullptr);
      EXPECT_EQ(trial.out.f.values(), in_turn);
    }
}

// Rows that were forgotten are written again, and everything else stays as it is.
TEST_F(CudaAttention, NewKeysAndValuesComeToTheirPages) {
  for (const KvType type : {KvType::F32, KvType::Bf16, KvType::Q8})
    for (const Case& c : {Case{2, 2, 40, 0, 150, false, false}, Case{4, 1, 64, 33, 260, false, false}}) {
      const size_t n = 100;
      Trial trial(c, type, n);
      const std::vector<std::byte> want = trial.context.pages->values();
      const Context& x = trial.context;
      std::vector<std::byte> memory = want;
      for (size_t p = c.positions - n; p < c.positions; ++p)
        for (size_t head = 0; head < c.kv_heads; ++head) {
          const size_t row = head * kKvPage + p % kKvPage, bytes = c.dim * kv_value_bytes(type);
          std::byte* page = memory.data() + x.index(p / kKvPage) * x.page_bytes;
          for (const uint64_t part : {x.place.keys, x.place.values})
            std::memset(page + part + row * bytes, 0x55, bytes);
          for (const uint64_t part : {x.place.key_scale, x.place.value_scale})
            if (type == KvType::Q8) std::memset(page + part + row * sizeof(float), 0x55, sizeof(float));
        }
      check_cuda(cudaMemcpy(x.pages->get(), memory.data(), memory.size(), cudaMemcpyHostToDevice), "a test");
      PrepareHeads p = trial.prepare(c, type);
      const DeviceArray<float> q(n * c.heads * c.dim);
      p.q_out = q.get();
      prepare_heads(p, nullptr);
      EXPECT_EQ(q.values(), trial.q);
      const std::vector<std::byte> got = x.pages->values();
      // What an int8 form gives when it is made again may differ in the last bit of its scale.
      if (type != KvType::Q8) {
        EXPECT_EQ(got, want);
      }
      attend(trial.a, nullptr);
      expect_close(trial.out.f.values(), trial.want, 2e-5f, c);
    }
}

TEST_F(CudaAttention, LatentsComeToTheirPages) {
  const Case c{3, 1, 48, 0, 200, false, false, 32};
  const size_t n = 70, rope = 16;
  for (const KvType type : {KvType::F32, KvType::Bf16, KvType::Q8}) {
    Trial trial(c, type, n);
    const Context& x = trial.context;
    const DeviceArray<float> ones(std::vector<float>(c.value_dim, 1.0f)),
        kv(std::vector<float>(noise_vector(n * c.dim, 7))), q(noise_vector(n * c.heads * (8 + rope), 8)),
        absorbed(n * c.heads * c.dim);
    const TestVectors nope(std::vector<float>(n * c.heads * 8), 8);
    prepare_latent({.n = n,
                    .n_heads = c.heads,
                    .nope_dim = 8,
                    .rope_dim = rope,
                    .kv_rank = c.value_dim,
                    .q = q.get(),
                    .kv = kv.get(),
                    .kv_norm = ones.get(),
                    .eps = 0,
                    .rope = {nullptr, nullptr, 0, false},
                    .tokens = trial.tokens->get(),
                    .place = x.place,
                    .kv_type = type,
                    .nope = nope.vectors,
                    .absorbed = absorbed.get()},
                   nullptr);
    const std::vector<float> raw = kv.values();
    const std::vector<std::byte> got = x.pages->values();
    for (size_t t = 0; t < n; ++t) {
      const float* row = &raw[t * c.dim];
      float squares = 0;
      for (size_t d = 0; d < c.value_dim; ++d) squares += row[d] * row[d];
      const float inverse = 1 / std::sqrt(squares / static_cast<float>(c.value_dim));
      const size_t p = c.positions - n + t, r = p % kKvPage;
      const std::byte* page = got.data() + x.index(p / kKvPage) * x.page_bytes;
      float scale = 1;
      if (type == KvType::Q8)
        std::memcpy(&scale, page + x.place.key_scale + r * sizeof(float), sizeof(float));
      for (size_t d = 0; d < c.dim; ++d) {
        const std::byte* at = page + x.place.keys + (r * c.dim + d) * kv_value_bytes(type);
        float value = 0;
        if (type == KvType::F32) std::memcpy(&value, at, sizeof(float));
        if (type == KvType::Q8) value = static_cast<float>(static_cast<int8_t>(*at)) * scale;
        if (type == KvType::Bf16) {
          uint16_t bits = 0;
          std::memcpy(&bits, at, sizeof(bits));
          value = bf16_to_float(bits);
        }
        ASSERT_NEAR(value, d < c.value_dim ? row[d] * inverse : row[d], type == KvType::F32 ? 1e-5f : 2e-2f);
      }
    }
  }
}

TEST_F(CudaAttention, TensorCoresAgreeWithTheReference) {
  for (const Case& c : {Case{8, 1, 128, 0, 1, false, false}, Case{8, 2, 64, 0, 333, true, false},
                        Case{16, 2, 256, 0, 200, false, true}, Case{20, 1, 128, 100, 450, false, false},
                        Case{4, 4, 64, 33, 700, true, true}, Case{32, 4, 128, 0, 1024, false, false},
                        Case{8, 2, 128, 128, 2200, true, false}, Case{16, 2, 256, 90, 900, false, false}}) {
    const size_t few = std::min<size_t>(c.positions, 3);
    Trial decode(c, KvType::Bf16, few);
    ASSERT_TRUE(flash_can(decode.a));
    std::vector<float> first;
    for (const size_t most : {4096, 16384, 1024}) {  // which say how many heads a block has
      if (c.positions > most) continue;
      decode.a.n_parts = flash_parts(most, c.window);
      const DeviceArray<float> parts(flash_parts_floats(few, c.heads, c.dim, decode.a.n_parts));
      decode.a.parts = parts.get();
      const DeviceArray<uint32_t> counters(std::vector<uint32_t>(flash_counters(decode.a, most)));
      flash_decode(decode.prepare(c), decode.a, most, decode.out.vectors, counters.get(), nullptr);
      EXPECT_EQ(counters.values(), std::vector<uint32_t>(flash_counters(decode.a, most)));
      expect_close(decode.out.f.values(), decode.want, 1e-2f, c);
      if (first.empty()) first = decode.out.f.values();
      EXPECT_EQ(decode.out.f.values(), first) << "below " << most;
    }
    const std::vector<int8_t> codes = decode.out.q.values();
    quantise(decode.out.vectors, nullptr);
    EXPECT_EQ(decode.out.q.values(), codes);

    for (const size_t n : {std::min<size_t>(c.positions, 40), c.positions}) {
      Trial prefill(c, KvType::Bf16, n);
      flash_prefill(prefill.a, c.positions - n, nullptr);
      expect_close(prefill.out.f.values(), prefill.want, 1e-2f, c);
    }
  }
}

}  // namespace
}  // namespace moeflux::cuda
