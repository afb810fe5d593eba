#include "cuda/delta.h"

#include "cuda/vectors_test.h"
#include "ops/delta.h"
#include "ops/pointwise.h"

namespace moeflux::cuda {
namespace {

class CudaDelta : public OnDevice {};

struct Shape {
  size_t key_heads, value_heads, key_dim, value_dim, width;
  size_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  size_t values() const { return value_heads * value_dim; }
};

struct Inputs {
  Inputs(const Shape& s, size_t n)
      : u(noise_vector(n * s.channels(), 1)),
        z(noise_vector(n * s.values(), 2)),
        b(noise_vector(n * s.value_heads, 3)),
        a(noise_vector(n * s.value_heads, 4)),
        conv(noise_vector(s.channels() * s.width, 5)),
        a_log(noise_vector(s.value_heads, 6)),
        dt_bias(noise_vector(s.value_heads, 7)),
        norm(noise_vector(s.value_dim, 8)) {}
  std::vector<float> u, z, b, a, conv, a_log, dt_bias, norm;
};

// Token by token, as the header of ops/delta.h has it.
std::vector<float> reference(const Shape& s, const Inputs& in, size_t n) {
  std::vector<float> out(n * s.values()), state(s.value_heads * s.key_dim * s.value_dim), keys, values, decay;
  const size_t block = s.key_dim + s.value_dim + 1;
  std::vector<float> blocks(s.value_heads * kDeltaBlock * block);
  for (size_t t = 0; t < n; ++t) {
    std::vector<float> y(s.channels());
    for (size_t c = 0; c < y.size(); ++c) {
      float sum = 0;
      for (size_t j = 0; j < s.width; ++j)
        if (t + j + 1 >= s.width)
          sum += in.conv[c * s.width + j] * in.u[(t + j + 1 - s.width) * y.size() + c];
      y[c] = silu(sum);
    }
    for (size_t h = 0; h < 2 * s.key_heads; ++h) {
      float squares = 0;
      for (size_t i = 0; i < s.key_dim; ++i) squares += y[h * s.key_dim + i] * y[h * s.key_dim + i];
      const float scale = h < s.key_heads ? 1 / std::sqrt(static_cast<float>(s.key_dim)) : 1.0f;
      for (size_t i = 0; i < s.key_dim; ++i) y[h * s.key_dim + i] *= scale / std::sqrt(squares + 1e-6f);
    }
    for (size_t h = 0; h < s.value_heads; ++h) {
      const size_t key_head = h / (s.value_heads / s.key_heads), at = t * s.value_heads + h;
      float* room = &blocks[h * kDeltaBlock * block];
      const DeltaHead head{s.key_dim,
                           s.value_dim,
                           &state[h * s.key_dim * s.value_dim],
                           room,
                           room + kDeltaBlock * s.key_dim,
                           room + kDeltaBlock * (s.key_dim + s.value_dim)};
      float* o = &out[at * s.value_dim];
      delta_step_ref(head, t % kDeltaBlock, &y[key_head * s.key_dim],
                     &y[(s.key_heads + key_head) * s.key_dim],
                     &y[2 * s.key_heads * s.key_dim + h * s.value_dim], sigmoid(in.b[at]),
                     -std::exp(in.a_log[h]) * softplus(in.a[at] + in.dt_bias[h]), o);
      rms_norm_ref({o, s.value_dim}, in.norm, 1e-6f, o);
      for (size_t c = 0; c < s.value_dim; ++c) o[c] *= silu(in.z[at * s.value_dim + c]);
    }
  }
  return out;
}

// The same on the device, for steps of some of n tokens.
struct Net {
  Net(const Shape& shape, const Inputs& in, size_t n)
      : s(shape),
        u(in.u),
        z(in.z),
        b(in.b),
        a(in.a),
        conv(in.conv),
        a_log(in.a_log),
        dt_bias(in.dt_bias),
        norm(in.norm),
        mixed(n * s.channels()),
        rule(n * s.values()),
        counters(std::vector<uint32_t>(s.key_heads)) {}

  // info.count tokens from `at` on; past and rule_at: where its parts lie in a state.
  void run(size_t at, const SliceInfo& info, size_t past, size_t rule_at, const Vectors& out) const {
    const DeviceArray<SliceInfo> slice(std::vector<SliceInfo>{info});
    delta_net({.n = info.count,
               .n_key_heads = s.key_heads,
               .n_value_heads = s.value_heads,
               .key_dim = s.key_dim,
               .value_dim = s.value_dim,
               .conv_width = s.width,
               .slices = slice.get(),
               .n_slices = 1,
               .past = past,
               .state = rule_at,
               .u = u.get() + at * s.channels(),
               .z = z.get() + at * s.values(),
               .b = b.get() + at * s.value_heads,
               .a = a.get() + at * s.value_heads,
               .z_stride = s.values(),
               .ba_stride = s.value_heads,
               .conv = conv.get(),
               .a_log = a_log.get(),
               .dt_bias = dt_bias.get(),
               .norm = norm.get(),
               .eps = 1e-6f,
               .unit_eps = 1e-6f,
               .mixed = mixed.get(),
               .out = rule.get(),
               .y = out,
               .counters = counters.get()},
              nullptr);
    check_cuda(cudaDeviceSynchronize(), "a test");
  }

  const Shape s;
  const DeviceArray<float> u, z, b, a, conv, a_log, dt_bias, norm, mixed, rule;
  const DeviceArray<uint32_t> counters;
};

TEST_F(CudaDelta, EveryCutGivesTheReferencesTokensAndTheSameBits) {
  for (const Shape& s : {Shape{1, 3, 24, 40, 3}, Shape{2, 4, 64, 64, 4}, Shape{1, 2, 128, 128, 4},
                         Shape{1, 1, 16, 20, 1}, Shape{1, 2, 200, 33, 2}}) {
    const size_t n = 75;
    const Inputs in(s, n);
    const Net net(s, in, n);
    std::vector<float> first;
    for (const size_t step : {n, size_t{1}, size_t{16}, size_t{31}}) {
      const size_t past = 8, rule_at = past + (s.width - 1) * s.channels();
      const DeviceArray<float> state(std::vector<float>(rule_at + s.value_heads * s.key_dim * s.value_dim));
      const TestVectors y(std::vector<float>(n * s.values()), s.values());
      for (size_t at = 0; at < n; at += step) {
        const size_t count = std::min(step, n - at);
        const SliceInfo info{state.get(), {}, 0, 0, static_cast<uint32_t>(count), static_cast<uint32_t>(at)};
        Vectors out = y.vectors;
        out.n = count;
        out.f += at * s.values();
        out.q = nullptr;
        net.run(at, info, past, rule_at, out);
      }
      const std::vector<float> got = y.f.values();
      if (first.empty()) {
        first = got;
        const std::vector<float> want = reference(s, in, n);
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3f) << s.key_dim << " " << i;
      }
      EXPECT_EQ(got, first) << s.key_dim << ", steps of " << step;
    }
  }
}

// What is kept of a step's first tokens is what a step of so many tokens leaves.
TEST_F(CudaDelta, StatesAfterEachTokenOfAShortStep) {
  for (const Shape& s : {Shape{1, 3, 24, 40, 3}, Shape{2, 4, 64, 64, 4}, Shape{1, 2, 128, 128, 6}}) {
    const size_t before = 3, n = kMostBack + 1, rule_at = (s.width - 1) * s.channels(),
                 floats = rule_at + s.value_heads * s.key_dim * s.value_dim;
    const Inputs in(s, before + n);
    const Net net(s, in, before + n);
    const TestVectors y(std::vector<float>((before + n) * s.values()), s.values());
    const auto run = [&](size_t at, size_t count, SliceInfo info) {
      info.count = static_cast<uint32_t>(count);
      info.position = static_cast<uint32_t>(at);
      Vectors out = y.vectors;
      out.n = count;
      out.q = nullptr;
      net.run(at, info, 0, rule_at, out);
    };
    std::vector<DeviceArray<float>> after;
    SliceInfo whole{};
    const DeviceArray<float> state{std::vector<float>(floats)};
    whole.state = state.get();
    run(0, before, whole);
    whole.n_after = kMostBack;
    for (uint32_t i = 0; i < kMostBack; ++i) whole.after[i] = after.emplace_back(floats).get();
    run(before, n, whole);
    for (uint32_t i = 0; i < kMostBack; ++i) {
      const DeviceArray<float> fresh{std::vector<float>(floats)};
      SliceInfo info{};
      info.state = fresh.get();
      run(0, before, info);
      run(before, i + 1, info);
      EXPECT_EQ(after[i].values(), fresh.values()) << s.key_dim << ", after " << i + 1;
    }
  }
}

}  // namespace
}  // namespace moeflux::cuda
