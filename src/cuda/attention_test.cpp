#include "cuda/attention.h"

#include <cmath>

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
};

// One sequence whose cache holds `positions` keys and values, as floats and in the form of `type`.
struct Context {
  Context(const Case& c, KvType type) : rows((c.positions + 63) / 64 * 64) {
    const size_t n = c.kv_heads * rows * c.dim;
    k = noise_vector(n, 1);
    v = noise_vector(n, 2);
    const auto narrow = [](std::vector<float>& x) {
      std::vector<uint16_t> y;
      for (float& value : x) {
        y.push_back(float_to_bf16(value));
        value = bf16_to_float(y.back());
      }
      return y;
    };
    if (type == KvType::Bf16) {
      const std::vector<uint16_t> a = narrow(k), b = narrow(v);
      keys.emplace(std::as_bytes(std::span(a)));
      values.emplace(std::as_bytes(std::span(b)));
    } else {
      keys.emplace(std::as_bytes(std::span(k)));
      values.emplace(std::as_bytes(std::span(v)));
    }
    cache.emplace(std::vector<LayerCache>{
        {keys->get(), values->get(), nullptr, nullptr, nullptr, nullptr, static_cast<uint32_t>(rows), 0}});
  }
  size_t rows;
  std::vector<float> k, v;
  std::optional<DeviceArray<std::byte>> keys, values;
  std::optional<DeviceArray<LayerCache>> cache;
};

// The queries are those of the last n positions.
std::vector<float> reference(const Case& c, const Context& x, const std::vector<float>& q,
                             const std::vector<float>& sinks, const std::vector<float>& gate, size_t n) {
  std::vector<float> out(n * c.heads * c.dim);
  for (size_t t = 0; t < n; ++t)
    for (size_t h = 0; h < c.heads; ++h) {
      const size_t last = c.positions - n + t,
                   low = c.window && last + 1 > c.window ? last + 1 - c.window : 0,
                   at = h / (c.heads / c.kv_heads) * x.rows, to = (t * c.heads + h) * c.dim;
      std::vector<float> s;
      for (size_t p = low; p <= last; ++p) {
        double sum = 0;
        for (size_t d = 0; d < c.dim; ++d) sum += double{q[to + d]} * x.k[(at + p) * c.dim + d];
        s.push_back(static_cast<float>(sum / std::sqrt(static_cast<double>(c.dim))));
      }
      c.sinks ? softmax_ref(s.data(), s.size(), sinks[h]) : softmax_ref(s.data(), s.size());
      for (size_t d = 0; d < c.dim; ++d) {
        double sum = 0;
        for (size_t p = low; p <= last; ++p) sum += double{s[p - low]} * x.v[(at + p) * c.dim + d];
        out[to + d] = static_cast<float>(sum) * (c.gated ? sigmoid(gate[to + d]) : 1.0f);
      }
    }
  return out;
}

struct Trial {
  Trial(const Case& c, KvType type, size_t n)
      : context(c, type),
        q(noise_vector(n * c.heads * c.dim, 3, 3)),
        sinks(noise_vector(c.heads, 4)),
        gate(noise_vector(n * c.heads * c.dim, 5)),
        want(reference(c, context, q, sinks, gate, n)),
        dq(q),
        dsinks(sinks),
        dgate(gate),
        out(std::vector<float>(n * c.heads * c.dim), c.heads * c.dim) {
    std::vector<TokenInfo> info;
    for (size_t t = 0; t < n; ++t)
      info.push_back({context.cache->get(), 0, static_cast<uint32_t>(c.positions - n + t)});
    tokens.emplace(info);
    a = {.n = n,
         .n_heads = c.heads,
         .n_kv_heads = c.kv_heads,
         .key_dim = c.dim,
         .value_dim = c.dim,
         .q = dq.get(),
         .tokens = tokens->get(),
         .layer = 0,
         .window = c.window,
         .kv = type,
         .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.dim))),
         .sinks = c.sinks ? dsinks.get() : nullptr,
         .gate = c.gated ? dgate.get() : nullptr,
         .gate_stride = c.heads * c.dim,
         .gate_head = c.dim,
         .out = out.vectors.f};
  }
  // The newest keys and values as they are in the cache already: what else reads them meanwhile sees the
  // same.
  PrepareHeads prepare(const Case& c) {
    std::vector<float> k, v;
    for (size_t t = 0; t < a.n; ++t)
      for (size_t h = 0; h < c.kv_heads; ++h)
        for (size_t d = 0; d < c.dim; ++d) {
          const size_t at = (h * context.rows + c.positions - a.n + t) * c.dim + d;
          k.push_back(context.k[at]);
          v.push_back(context.v[at]);
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
            .layer = 0,
            .kv = KvType::Bf16,
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
  for (const Case& c : {Case{4, 2, 32, 0, 1, false, false}, Case{3, 1, 20, 0, 300, true, false},
                        Case{6, 2, 64, 50, 290, false, true}, Case{2, 2, 576, 0, 129, false, false}}) {
    const size_t n = std::min<size_t>(c.positions, 3);
    Trial trial(c, KvType::F32, n);
    attend(trial.a, nullptr);
    const std::vector<float> in_turn = trial.out.f.values();
    expect_close(in_turn, trial.want, 2e-5f, c);
    trial.a.n_parts = c.positions / kAttendPart + 1;
    const DeviceArray<float> parts(attend_parts_floats(n, c.heads, c.dim, trial.a.n_parts));
    trial.a.parts = parts.get();
    attend(trial.a, nullptr);
    EXPECT_EQ(trial.out.f.values(), in_turn);
  }
}

TEST_F(CudaAttention, TensorCoresAgreeWithTheReference) {
  for (const Case& c : {Case{8, 1, 128, 0, 1, false, false}, Case{8, 2, 64, 0, 333, true, false},
                        Case{16, 2, 256, 0, 200, false, true}, Case{20, 1, 128, 100, 450, false, false},
                        Case{4, 4, 64, 33, 700, true, true}, Case{32, 4, 128, 0, 1024, false, false}}) {
    const size_t few = std::min<size_t>(c.positions, 3);
    Trial decode(c, KvType::Bf16, few);
    ASSERT_TRUE(flash_can(decode.a));
    decode.a.n_parts = flash_parts(4096, c.window);
    const DeviceArray<float> parts(flash_parts_floats(few, c.heads, c.dim, decode.a.n_parts));
    decode.a.parts = parts.get();
    const DeviceArray<uint32_t> counters(std::vector<uint32_t>(flash_counters(decode.a)));
    flash_decode(decode.prepare(c), decode.a, 4096, decode.out.vectors, counters.get(), nullptr);
    EXPECT_EQ(counters.values(), std::vector<uint32_t>(flash_counters(decode.a)));
    expect_close(decode.out.f.values(), decode.want, 1e-2f, c);
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
