// A stage's start in one launch against the launches that it stands for.
#include "cuda/entry.h"

#include "cuda/pointwise.h"
#include "cuda/vectors_test.h"
#include "ops/linear.h"

namespace moeflux::cuda {
namespace {

class CudaEntry : public OnDevice {};

struct Shape {
  size_t n = 1, cols = 2048;
  size_t rows[2] = {128, 0};
  MatrixFormat format = MatrixFormat::plain(MatrixType::Bf16);
};

std::string describe(const Shape& s) {
  return to_string(s.format) + ", " + std::to_string(s.n) + " tokens of " + std::to_string(s.cols) + ", " +
         std::to_string(s.rows[0]) + " + " + std::to_string(s.rows[1]) + " rows";
}

// Runs twice: the second time finds the mail as the first has left it.
void compare(const Shape& shape, const RouterRule* rule, bool with_rest) {
  const auto& [n, cols, rows, format] = shape;
  const std::string name = describe(shape);
  const std::vector<float> x = whole_numbers(n * cols, 3), w = noise_vector(cols, 5);
  const DeviceArray<float> device_x(x), device_w(w);
  const TestVectors want_h(std::vector<float>(n * cols), cols), h(std::vector<float>(n * cols), cols),
      rest(std::vector<float>(n * cols), cols), want_rest(std::vector<float>(n * cols), cols);
  rms_norm(device_x.get(), cols, nullptr, device_w.get(), 1e-6f, want_h.vectors, nullptr);
  quantise_rest(want_h.vectors, want_rest.vectors, nullptr);

  const size_t k = rule ? rule->top_k : 0;
  const DeviceArray<uint32_t> ids(n * k);
  const DeviceArray<float> weights(n * k);
  Entry entry{.x = device_x.get(),
              .w = device_w.get(),
              .eps = 1e-6f,
              .h = h.vectors,
              .rule = rule,
              .ids = ids.get(),
              .weights = weights.get()};
  if (with_rest) entry.rest = rest.vectors;
  RouterRule there = rule ? *rule : RouterRule{};
  const DeviceArray<float> score_bias(std::vector<float>(there.score_bias.begin(), there.score_bias.end()));
  if (!there.score_bias.empty()) there.score_bias = {score_bias.get(), there.score_bias.size()};
  if (rule) entry.rule = &there;
  std::vector<TestMatrix> matrices;
  std::vector<DeviceMatrix> on_device;
  std::vector<DeviceArray<float>> out;
  const std::vector<float> bias = noise_vector(rows[0], 17);
  const DeviceArray<float> device_bias(bias);
  for (size_t i = 0; i < 2 && rows[i]; ++i) {
    matrices.emplace_back(format, rows[i], cols, static_cast<uint32_t>(7 + i));
    on_device.emplace_back(matrices.back());
    out.emplace_back(n * rows[i]);
    entry.small[i] = {on_device.back().view, i == 0 ? device_bias.get() : nullptr, out.back().get()};
  }
  ASSERT_TRUE(entry_can(entry)) << name;
  const DeviceBuffer mail(entry_mail(rows[0] + rows[1]), "mail");
  check_cuda(cudaMemset(mail.as<>(), 0, mail.size()), "mail");
  entry.mail = mail.as<>();

  const std::vector<float> normed = want_h.f.values();
  for (int round = 0; round < 2; ++round) {
    enter(entry, nullptr);
    ASSERT_EQ(h.f.values(), normed) << name;
    ASSERT_EQ(h.q.values(), want_h.q.values()) << name;
    if (with_rest) {
      ASSERT_EQ(rest.q.values(), want_rest.q.values()) << name;
    }
    for (size_t i = 0; i < matrices.size(); ++i) {
      std::vector<float> want(n * rows[i]);
      linear_exact_ref(matrices[i].view, 0, rows[i], normed.data(), n, cols, want.data(), rows[i]);
      if (i == 0)
        for (size_t j = 0; j < want.size(); ++j) want[j] += bias[j % rows[0]];
      ASSERT_EQ(out[i].values(), want) << name << ", product " << i;
    }
    if (!rule) continue;
    const std::vector<float> logits = out[0].values(), got_weights = weights.values();
    const std::vector<uint32_t> got_ids = ids.values();
    for (size_t t = 0; t < n; ++t) {
      std::vector<uint32_t> want_ids(k);
      std::vector<float> want(k);
      route_ref(*rule, {&logits[t * rows[0]], rows[0]}, want_ids.data(), want.data());
      for (size_t i = 0; i < k; ++i) {
        ASSERT_EQ(got_ids[t * k + i], want_ids[i]) << name << ", token " << t;
        ASSERT_NEAR(got_weights[t * k + i], want[i], 1e-6f) << name << ", token " << t;
      }
    }
  }
}

TEST_F(CudaEntry, HasTheBitsOfTheLaunchesThatItStandsFor) {
  for (const MatrixFormat& f : {MatrixFormat::plain(MatrixType::F32), MatrixFormat::plain(MatrixType::F16),
                                MatrixFormat::plain(MatrixType::Bf16), MatrixFormat::affine(4, 64),
                                MatrixFormat::affine(8, 64), MatrixFormat::affine(8, 32)})
    for (const size_t cols : {64, 192, 2048, 4096})
      for (const size_t n : {1, 3, 8}) {
        compare({.n = n, .cols = cols, .rows = {67, 0}, .format = f}, nullptr, false);
        compare({.n = n, .cols = cols, .rows = {32, 32}, .format = f}, nullptr, true);
      }
}

TEST_F(CudaEntry, ChoosesAsTheReference) {
  const std::vector<float> bias = noise_vector(256, 9);
  for (const size_t n : {1, 2, 8}) {
    for (const size_t experts : {8, 128, 512})
      for (const auto kind : {RouterRule::Softmax, RouterRule::TopkSoftmax}) {
        RouterRule rule;
        rule.kind = kind;
        rule.top_k = std::min<size_t>(experts, 10);
        rule.norm = true;
        compare({.n = n, .rows = {experts, 1}}, &rule, false);
      }
    const RouterRule grouped{.kind = RouterRule::Sigmoid,
                             .top_k = 8,
                             .n_groups = 8,
                             .top_groups = 4,
                             .norm = true,
                             .norm_eps = 1e-20f,
                             .scaling = 2.5f,
                             .score_bias = bias};
    compare({.n = n, .cols = 4096, .rows = {256, 0}}, &grouped, false);
  }
}

}  // namespace
}  // namespace moeflux::cuda
