// Every table of operations that this processor can run, against the plain versions and against each other.
#include "ops/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/numbers.h"
#include "ops/pointwise.h"
#include "ops/test_matrix.h"

namespace moeflux {
namespace {

std::vector<float> noise_vector(size_t n, uint32_t seed, float scale = 1) {
  std::vector<float> v(n);
  for (float& x : v) x = noise(seed) * scale;
  return v;
}

class EveryIsa : public testing::TestWithParam<const Ops*> {
 protected:
  const Ops& ops() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Isa, EveryIsa, testing::ValuesIn(runnable_ops().begin(), runnable_ops().end()),
                         [](const auto& test) { return std::string(test.param->name); });

// A panel of n vectors together with its memory.
struct TestPanel {
  TestPanel(const Ops& ops, const std::vector<float>& x, size_t cols)
      : floats(x), q((cols + 63) / 64 * (x.size() / cols) * 64), scale((cols + 63) / 64 * (x.size() / cols)) {
    panel = {x.size() / cols, cols, floats.data(), cols, q.data(), scale.data()};
    for (size_t t = 0; t < panel.n; ++t) ops.quantise(&floats[t * cols], panel, t);
  }
  std::vector<float> floats;
  std::vector<int8_t> q;
  std::vector<SpanScale> scale;
  Panel panel;
};

TEST_P(EveryIsa, LinearHasTheBitsOfThePlainVersion) {
  for (const MatrixFormat& f : test_formats())
    for (const size_t cols : {32, 64, 96, 100, 320, 640, 1024}) {  // 320: half a tile where groups are of 128
      if (f.group && cols % std::min<size_t>(f.group, 64)) continue;
      for (const size_t n : {1, 2, 5, 37}) {
        const size_t rows = 67, blocks = 5;  // four that a kernel may take at once, and a tail
        const TestMatrix m(f, rows, cols, 7);
        const TestPanel x(ops(), noise_vector(n * cols, 11), cols);
        std::vector<float> want(n * rows), got(n * rows, -1);
        linear_fast_ref(m.view, 0, rows, x.floats.data(), n, cols, want.data(), rows);
        (has_integer_codes(f) ? ops().linear_fast : ops().linear_exact)(tiles_of(m.view), 0, blocks, x.panel,
                                                                        nullptr, n, got.data(), rows);
        ASSERT_EQ(got, want) << to_string(f) << " fast, cols " << cols << ", n " << n;
        linear_exact_ref(m.view, 0, rows, x.floats.data(), n, cols, want.data(), rows);
        ops().linear_exact(tiles_of(m.view), 0, blocks, x.panel, nullptr, n, got.data(), rows);
        ASSERT_EQ(got, want) << to_string(f) << " exact, cols " << cols << ", n " << n;
      }
    }
}

TEST_P(EveryIsa, LinearOfPickedVectorsAndBlocks) {
  const size_t rows = 64, cols = 192;
  const TestMatrix m(MatrixFormat::affine(4, 64), rows, cols, 3);
  const TestPanel x(ops(), noise_vector(9 * cols, 5), cols);
  std::vector<float> all(9 * rows);
  for (const auto linear : {ops().linear_fast, ops().linear_exact}) {
    linear(tiles_of(m.view), 0, 4, x.panel, nullptr, 9, all.data(), rows);
    const uint32_t pick[] = {7, 2, 2};
    float some[3 * 32];
    linear(tiles_of(m.view), 1, 2, x.panel, pick, 3, some, 32);
    for (size_t t = 0; t < 3; ++t)
      for (size_t r = 0; r < 32; ++r) ASSERT_EQ(some[t * 32 + r], all[pick[t] * rows + 16 + r]);
  }
}

TEST_P(EveryIsa, LinearOfOnePickedVector) {
  const size_t rows = 60, cols = 200;
  for (const MatrixFormat& f : {MatrixFormat::affine(4, 64), MatrixFormat::affine(4, 32),
                                MatrixFormat::affine(8, 128), MatrixFormat::plain(MatrixType::Bf16)}) {
    const TestMatrix m(f, rows, cols, 3);
    const TestPanel x(ops(), noise_vector(3 * cols, 5), cols);
    for (const auto linear : {ops().linear_fast, ops().linear_exact}) {
      if (linear == ops().linear_fast && !has_integer_codes(f)) continue;
      std::vector<float> all(3 * rows), one(rows - 16);
      linear(tiles_of(m.view), 0, 4, x.panel, nullptr, 3, all.data(), rows);
      const uint32_t pick = 2;
      linear(tiles_of(m.view), 1, 3, x.panel, &pick, 1, one.data(), one.size());
      for (size_t r = 0; r < one.size(); ++r) ASSERT_EQ(one[r], all[2 * rows + 16 + r]) << to_string(f);
    }
  }
}

TEST_P(EveryIsa, LargeCodesAndActivationsDoNotSaturate) {
  for (const MatrixFormat& f :
       {MatrixFormat::affine(4, 64), MatrixFormat::affine(8, 64), MatrixFormat::mxfp4()})
    for (const float sign : {1.0f, -1.0f}) {
      TestMatrix m(f, 16, 128, 3);
      for (size_t t = 0; t < m.bytes.size() / f.tile_bytes(); ++t)
        for (size_t i = 0; i < f.tile_code_bytes(); ++i)  // the largest codes: 15, 255, 6
          m.bytes[t * f.tile_bytes() + i] = std::byte(f.type == MatrixType::Mxfp4 ? 0x77 : 0xff);
      const TestPanel x(ops(), std::vector<float>(128, sign * 3.0f), 128);
      float want[16], got[16];
      linear_fast_ref(m.view, 0, 16, x.floats.data(), 1, 128, want, 16);
      ops().linear_fast(tiles_of(m.view), 0, 1, x.panel, nullptr, 1, got, 16);
      for (size_t r = 0; r < 16; ++r) ASSERT_EQ(got[r], want[r]) << to_string(f);
    }
}

TEST_P(EveryIsa, QuantisedVectorsAreThoseOfThePlainVersion) {
  for (const size_t cols : {1, 63, 64, 100, 256}) {
    const TestPanel x(ops(), noise_vector(3 * cols, 9, 4), cols);
    for (size_t t = 0; t < 3; ++t) {
      const QuantisedVector want = quantise_vector({&x.floats[t * cols], cols});
      for (size_t i = 0; i < want.q.size(); ++i) ASSERT_EQ(x.q[(i / 64 * 3 + t) * 64 + i % 64], want.q[i]);
      for (size_t s = 0; s < want.scale.size(); ++s) ASSERT_EQ(x.scale[s * 3 + t].xs, want.scale[s]);
    }
  }
}

TEST_P(EveryIsa, RemaindersAreThoseOfThePlainVersion) {
  for (const size_t cols : {1, 63, 64, 100, 256}) {
    const TestPanel x(ops(), noise_vector(3 * cols, 9, 4), cols);
    std::vector<float> want(cols), got(cols);
    for (size_t t = 0; t < 3; ++t) {
      remainder_ref({&x.floats[t * cols], cols}, want.data());
      ops().remainder(&x.floats[t * cols], x.panel, t, got.data());
      EXPECT_EQ(got, want);
      for (size_t i = 0; i < cols; ++i) ASSERT_LE(std::fabs(got[i]), 0.51f * x.scale[i / 64 * 3 + t].xs);
    }
  }
}

TEST_P(EveryIsa, PointwiseHasTheBitsOfThePlainVersion) {
  for (const size_t n : {1, 7, 16, 31, 64, 1000}) {
    const auto x = noise_vector(n, 1, 30), y = noise_vector(n, 2, 9);
    std::vector<float> want(n), got(n);
    rms_norm_ref(x, y, 1e-6f, want.data());
    ops().rms_norm(x.data(), y.data(), n, 1e-6f, got.data());
    EXPECT_EQ(got, want);
    swiglu_ref(x.data(), y.data(), n, want.data());
    ops().swiglu(x.data(), y.data(), n, got.data());
    EXPECT_EQ(got, want);
    clamped_swiglu_ref(x.data(), y.data(), n, 7, want.data());
    ops().clamped_swiglu(x.data(), y.data(), n, 7, got.data());
    EXPECT_EQ(got, want);
    for (size_t i = 0; i < n; ++i) want[i] = y[i] * sigmoid(x[i]);
    got = y;
    ops().sigmoid_gate(x.data(), n, got.data());
    EXPECT_EQ(got, want);
    for (size_t i = 0; i < n; ++i) want[i] = y[i] * silu(x[i]);
    got = y;
    ops().silu_gate(x.data(), n, got.data());
    EXPECT_EQ(got, want);
    for (size_t i = 0; i < n; ++i) want[i] = std::fma(0.3f, x[i], y[i]);
    got = y;
    ops().add_scaled(x.data(), 0.3f, n, got.data());
    EXPECT_EQ(got, want);
    const float inverse = 1.0f / std::sqrt(dot(x.data(), x.data(), n) + 1e-6f);
    for (size_t i = 0; i < n; ++i) want[i] = x[i] * inverse * 0.5f;
    got = x;
    ops().scale_to_length(got.data(), n, 1e-6f, 0.5f);
    EXPECT_EQ(got, want);
  }
}

TEST_P(EveryIsa, GatesOfSpecialValuesAreThoseOfThePlainVersion) {
  const float inf = INFINITY;
  for (const float x : {NAN, inf, -inf, 0.0f, -0.0f, 1e30f, -1e30f, 88.5f, -88.5f, 1e-42f}) {
    float by_sigmoid = 3, by_silu = 3;
    ops().sigmoid_gate(&x, 1, &by_sigmoid);
    ops().silu_gate(&x, 1, &by_silu);
    EXPECT_EQ(by_sigmoid, 3 * sigmoid(x)) << x;  // of a NaN too: the exponential clamps it
    if (std::isnan(x))
      EXPECT_TRUE(std::isnan(by_silu));
    else
      EXPECT_EQ(by_silu, 3 * silu(x)) << x;
  }
}

TEST(Pointwise, ActivationExponential) {
  for (float x = -100; x < 100; x += 0.0137f) {
    const double want = std::exp(double{std::clamp(x, -87.0f, 88.0f)});
    EXPECT_NEAR(exp_activation(x) / want, 1, 2e-7) << x;
  }
  EXPECT_EQ(exp_activation(0), 1);
}

// -- attention

struct TestKv {
  TestKv(const Ops& ops, KvType type, size_t rows, size_t key_dim, size_t value_dim, bool own_values,
         size_t n, uint32_t seed)
      : plain_keys(n * key_dim), plain_values(n * value_dim) {
    const size_t keys = kKvBlock * key_dim * 4, values = kKvBlock * value_dim * 4, scales = kKvBlock * 4;
    memory.resize(rows / kKvBlock * (keys + values + 2 * scales));
    for (size_t at = 0; at < memory.size(); at += keys + values + 2 * scales) pages.push_back(&memory[at]);
    std::reverse(pages.begin(), pages.end());  // they need not follow each other
    head = {
        type, key_dim, value_dim, own_values, pages.data(), 0, keys, keys + values, keys + values + scales};
    for (float& x : plain_keys) x = noise(seed);
    for (float& x : plain_values) x = noise(seed);
    for (size_t p = 0; p < n; ++p) {
      ops.store_key(head, p, &plain_keys[p * key_dim]);
      if (own_values)
        ops.store_value(head, p, &plain_values[p * value_dim]);
      else
        std::copy_n(&plain_keys[p * key_dim], value_dim, &plain_values[p * value_dim]);
    }
  }
  TestKv(const TestKv&) = delete;
  std::vector<std::byte> memory;
  std::vector<std::byte*> pages;
  std::vector<float> plain_keys, plain_values;
  KvHead head;
};

// Attention of all rows, through parts, merge and finish.
std::vector<float> attend_all(const Ops& ops, bool narrow, const KvHead& kv, std::vector<AttendRow> rows,
                              const float* sink) {
  const size_t dim = kv.value_dim, n = rows.size();
  std::vector<float> sums(n * dim), state(2 * n), part(n * dim), part_state(2 * n),
      scratch(attend_scratch(kv.key_dim, kv.value_dim, n));
  size_t first = SIZE_MAX, last = 0;
  std::vector<AttendRow> parts = rows;
  for (size_t r = 0; r < n; ++r) {
    rows[r].out = &sums[r * dim], rows[r].max_sum = &state[2 * r];
    parts[r].out = &part[r * dim], parts[r].max_sum = &part_state[2 * r];
    first = std::min(first, rows[r].first), last = std::max(last, rows[r].last);
  }
  bool any = false;
  for (size_t p = first / kPartition * kPartition; p <= last; p += kPartition) {
    const size_t begin = std::max(p, first / kKvBlock * kKvBlock), end = std::min(p + kPartition, last + 1);
    const auto& into = any ? parts : rows;
    (narrow ? ops.attend_narrow : ops.attend)(kv, begin, end, 0.3f, into.data(), n, scratch.data());
    for (size_t r = 0; any && r < n; ++r) ops.merge_attention(parts[r], rows[r], dim);
    any = true;
  }
  for (size_t r = 0; r < n; ++r) ops.finish_attention(rows[r], dim, sink);
  return sums;
}

std::vector<double> plain_attention(const TestKv& kv, const float* q, size_t first, size_t last,
                                    const float* sink) {
  const size_t kd = kv.head.key_dim, vd = kv.head.value_dim;
  std::vector<double> score, out(vd);
  double most = sink ? *sink : -1e300, total = 0;
  for (size_t p = first; p <= last; ++p) {
    double s = 0;
    for (size_t i = 0; i < kd; ++i) s += double{q[i]} * kv.plain_keys[p * kd + i];
    score.push_back(s * 0.3f);
    most = std::max(most, score.back());
  }
  for (double& s : score) total += s = std::exp(s - most);
  if (sink) total += std::exp(*sink - most);
  for (size_t p = first; p <= last; ++p)
    for (size_t i = 0; i < vd; ++i) out[i] += score[p - first] / total * kv.plain_values[p * vd + i];
  return out;
}

TEST_P(EveryIsa, AttentionEqualsThePlainFormula) {
  struct Case {
    KvType type;
    size_t n, key_dim, value_dim;
    bool own_values;
    double bound;
  };
  for (const Case& c :
       {Case{KvType::F32, 1, 64, 64, true, 2e-6}, Case{KvType::F32, 200, 72, 40, true, 2e-5},
        Case{KvType::F32, 2200, 64, 64, true, 2e-5}, Case{KvType::F32, 130, 96, 80, false, 2e-5},
        Case{KvType::Bf16, 200, 128, 128, true, 2e-2}, Case{KvType::Q8, 200, 64, 64, true, 3e-2},
        Case{KvType::Q8, 200, 96, 64, false, 3e-2}}) {
    const TestKv kv(ops(), c.type, (c.n + 63) / 64 * 64, c.key_dim, c.value_dim, c.own_values, c.n, 21);
    const auto q = noise_vector(3 * c.key_dim, 5);
    const float sink = 0.7f;
    for (const bool narrow : {false, true})
      for (const float* s : {static_cast<const float*>(nullptr), &sink}) {
        std::vector<AttendRow> rows;
        for (size_t r = 0; r < 3; ++r)
          rows.push_back(
              {&q[r * c.key_dim], nullptr, nullptr, r == 2 ? c.n / 3 : 0, c.n - 1 - (r == 1 ? c.n / 2 : 0)});
        const auto got = attend_all(ops(), narrow, kv.head, rows, s);
        for (size_t r = 0; r < 3; ++r) {
          const auto want = plain_attention(kv, rows[r].q, rows[r].first, rows[r].last, s);
          for (size_t i = 0; i < c.value_dim; ++i)
            ASSERT_NEAR(got[r * c.value_dim + i], want[i], c.bound) << r << " " << narrow;
        }
      }
  }
}

TEST_P(EveryIsa, AttentionOfAQueryDoesNotDependOnOthers) {
  const size_t n = 1500, dim = 64, queries = 15;
  const TestKv kv(ops(), KvType::Bf16, 1536, dim, dim, true, n, 4);
  const auto q = noise_vector(queries * dim, 8);
  std::vector<AttendRow> rows;
  for (size_t r = 0; r < queries; ++r)
    rows.push_back({&q[r * dim], nullptr, nullptr, r * 100, n - 1 - 5 * r});
  for (const bool narrow : {false, true}) {
    const auto all = attend_all(ops(), narrow, kv.head, rows, nullptr);
    for (size_t r = 0; r < queries; ++r) {
      const auto one = attend_all(ops(), narrow, kv.head, {rows[r]}, nullptr);
      for (size_t i = 0; i < dim; ++i) ASSERT_EQ(one[i], all[r * dim + i]) << r << " " << narrow;
    }
  }
}

TEST_P(EveryIsa, AttentionHasTheSameBitsOnEveryInstructionSet) {
  const Ops& generic = *runnable_ops().back();
  struct Case {
    size_t key_dim, value_dim;
    bool own_values;
  };
  for (const Case& c : {Case{64, 64, true}, Case{128, 128, true}, Case{72, 40, true}, Case{33, 19, true},
                        Case{96, 64, false}, Case{67, 51, false}})
    for (const KvType type : {KvType::F32, KvType::Bf16, KvType::Q8})
      for (const bool narrow : {false, true}) {
        const TestKv a(ops(), type, 320, c.key_dim, c.value_dim, c.own_values, 300, 4),
            b(generic, type, 320, c.key_dim, c.value_dim, c.own_values, 300, 4);
        EXPECT_EQ(a.memory, b.memory);
        const size_t queries = 13;
        const auto q = noise_vector(queries * c.key_dim, 8);
        std::vector<AttendRow> rows;
        for (size_t r = 0; r < queries; ++r)
          rows.push_back({&q[r * c.key_dim], nullptr, nullptr, 3 * r, 299 - r});
        EXPECT_EQ(attend_all(ops(), narrow, a.head, rows, nullptr),
                  attend_all(generic, narrow, b.head, rows, nullptr))
            << c.key_dim << " " << int(type) << " " << narrow;
      }
}

TEST_P(EveryIsa, NarrowAttentionRoundsQueriesAndWeights) {
  const size_t dim = 64, n = 40;
  const TestKv kv(ops(), KvType::Bf16, 64, dim, dim, true, n, 9);
  auto q = noise_vector(dim, 3), rounded = q;
  for (float& x : rounded) x = bf16_to_float(float_to_bf16(x));
  ASSERT_NE(q, rounded);
  const auto run = [&](const std::vector<float>& query, bool narrow, size_t last) {
    return attend_all(ops(), narrow, kv.head, {{query.data(), nullptr, nullptr, 0, last}}, nullptr);
  };
  EXPECT_EQ(run(q, true, n - 1), run(rounded, true, n - 1));
  EXPECT_NE(run(rounded, true, n - 1), run(rounded, false, n - 1));  // many weights, which are rounded
  EXPECT_EQ(run(rounded, true, 0), run(rounded, false, 0));          // one weight, which is 1
}

// -- delta rule

struct DeltaRun {
  DeltaRun(size_t dk, size_t dv)
      : state(dk * dv), keys(kDeltaBlock * dk), values(kDeltaBlock * dv), decay(kDeltaBlock) {
    head = {dk, dv, state.data(), keys.data(), values.data(), decay.data()};
  }
  std::vector<float> state, keys, values, decay;
  DeltaHead head;
};

TEST_P(EveryIsa, DeltaRuleEqualsThePlainVersionForEveryCut) {
  const Ops& generic = *runnable_ops().back();
  for (const auto& dims : {std::pair<size_t, size_t>{8, 6}, {16, 16}, {128, 128}, {24, 80}}) {
    const size_t dk = dims.first, dv = dims.second, n = kDeltaBlock * 2 + 9;
    auto q = noise_vector(n * dk, 1), k = noise_vector(n * dk, 2);
    const auto v = noise_vector(n * dv, 3);
    auto beta = noise_vector(n, 4), g = noise_vector(n, 5);
    for (size_t t = 0; t < n; ++t) {
      ops().scale_to_length(&q[t * dk], dk, 1e-6f, 0.3f);
      ops().scale_to_length(&k[t * dk], dk, 1e-6f, 1);
      beta[t] = 0.5f + 0.4f * beta[t], g[t] = -0.3f - 0.29f * g[t];
    }
    DeltaRun plain(dk, dv);
    std::vector<float> want(n * dv), scratch(delta_scratch(dv));
    for (size_t t = 0; t < n; ++t)
      delta_step_ref(plain.head, t % kDeltaBlock, &q[t * dk], &k[t * dk], &v[t * dv], beta[t], g[t],
                     &want[t * dv]);
    std::vector<std::vector<float>> results;
    const auto run = [&](const Ops& o, size_t step) {
      DeltaRun state(dk, dv);
      std::vector<float> got(n * dv);
      for (size_t t = 0; t < n;) {
        const size_t count = std::min({step, n - t, kDeltaBlock - t % kDeltaBlock});
        o.delta_block(state.head, t % kDeltaBlock, count,
                      {&q[t * dk], &k[t * dk], &v[t * dv], dk, dv, &beta[t], &g[t], &got[t * dv], dv},
                      scratch.data());
        t += count;
      }
      got.insert(got.end(), state.state.begin(), state.state.end());
      results.push_back(got);
    };
    for (const size_t step : {1, 7, 64}) run(ops(), step);
    run(generic, 64);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(results[0][i], want[i], 1e-5);
    for (size_t i = 1; i < results.size(); ++i) EXPECT_EQ(results[i], results[0]) << i;
  }
}

TEST_P(EveryIsa, ConvolutionEqualsThePlainFormula) {
  const size_t n = 37, width = 4;
  const auto taps = noise_vector(width * 50, 1), x = noise_vector(width * n, 2);
  const float* rows[4] = {&x[0], &x[n], &x[2 * n], &x[3 * n]};
  std::vector<float> y(n);
  ops().conv_silu(rows, taps.data(), 50, width, n, y.data());
  for (size_t c = 0; c < n; ++c) {
    float s = 0;
    for (size_t j = 0; j < width; ++j) s += taps[j * 50 + c] * rows[j][c];
    EXPECT_EQ(y[c], silu(s));
  }
}

TEST(Ops, AForcedInstructionSetIsTheOneThatRuns) {
  for (const Ops* ops : runnable_ops()) EXPECT_EQ(&choose_ops(std::string(ops->name)), ops);
  EXPECT_EQ(&choose_ops("auto"), runnable_ops().front());
  EXPECT_ANY_THROW(choose_ops("mmx"));
}

}  // namespace
}  // namespace moeflux
