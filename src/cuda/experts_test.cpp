// The feed-forward parts of experts.h against the plain operations: the same bits, whatever runs them.
#include "cuda/experts.h"
#include "cuda/entry.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>

#include "cuda/vectors_test.h"
#include "model/weights.h"
#include "ops/linear.h"
#include "ops/pointwise.h"

namespace moeflux::cuda {
namespace {

class CudaExperts : public OnDevice {};

// An expert with made-up weights, on the host as parts and as a record.
struct TestExpert {
  TestExpert(const MatrixFormat (&formats)[3], size_t width, size_t d, bool biased, uint32_t seed)
      : gate(formats[0], width, d, seed),
        up(formats[1], width, d, seed + 1),
        down(formats[2], d, width, seed + 2) {
    if (biased) bias = noise_vector(2 * width + d, seed + 3);
    size_t at = 0;
    for (const TestMatrix* m : {&gate, &up, &down}) {
      offsets.push_back(at);
      at += (m->bytes.size() + 63) / 64 * 64;
    }
    record.resize(at + bias.size() * sizeof(float));
    for (size_t i = 0; i < 3; ++i) {
      const auto& bytes = (i == 0 ? gate : i == 1 ? up : down).bytes;
      std::memcpy(record.data() + offsets[i], bytes.data(), bytes.size());
    }
    std::memcpy(record.data() + at, bias.data(), bias.size() * sizeof(float));
  }

  MlpWeights bound(const std::byte* base) const {
    const auto part = [&](const TestMatrix& m, size_t i, size_t from) {
      const auto* floats =
          reinterpret_cast<const float*>(base + (record.size() - bias.size() * sizeof(float)));
      return Linear{{base + offsets[i], m.view.format, m.view.rows, m.view.cols},
                    bias.empty() ? Vector{} : Vector{floats + from, m.view.rows}};
    };
    const size_t width = gate.view.rows;
    return {part(gate, 0, 0), part(up, 1, width), part(down, 2, 2 * width)};
  }

  std::vector<float> compute(const float* x, bool exact, float clamp) const {
    const size_t width = gate.view.rows, d = down.view.rows;
    const auto linear = exact ? linear_exact_ref : linear_fast_ref;
    std::vector<float> g(width), u(width), y(d);
    linear(gate.view, 0, width, x, 1, d, g.data(), width);
    linear(up.view, 0, width, x, 1, d, u.data(), width);
    for (size_t i = 0; !bias.empty() && i < width; ++i) g[i] += bias[i], u[i] += bias[width + i];
    if (clamp == 0)
      swiglu_ref(g.data(), u.data(), width, g.data());
    else
      clamped_swiglu_ref(g.data(), u.data(), width, clamp, g.data());
    linear(down.view, 0, d, g.data(), 1, width, y.data(), d);
    for (size_t i = 0; !bias.empty() && i < d; ++i) y[i] += bias[2 * width + i];
    return y;
  }

  TestMatrix gate, up, down;
  std::vector<float> bias;  // of gate, up and down
  std::vector<size_t> offsets;
  std::vector<std::byte> record;
};

struct Case {
  MatrixFormat formats[3];
  size_t width, d, n, top_k, n_experts;
  bool biased = false;
  float clamp = 0;
  bool shared = false, gated = false;
};

// Experts on the device, a batch that is routed to them, and what must come out.
struct Fixture {
  Fixture(const Case& c, bool exact)
      : x(noise_vector(c.n * c.d, 21, 2)),
        residual(noise_vector(c.n * c.d, 22)),
        weights(noise_vector(c.n * c.top_k, 23)),
        shared(noise_vector(c.n * c.d, 24)),
        gates(noise_vector(c.n, 25)),
        vectors(x, c.d),
        device_weights(weights),
        device_shared(shared),
        device_gates(gates),
        device_x(residual) {
    for (size_t e = 0; e < c.n_experts; ++e) {
      experts.emplace_back(c.formats, c.width, c.d, c.biased, static_cast<uint32_t>(31 + 5 * e));
      records.emplace_back(experts.back().record);
    }
    uint32_t seed = 77;
    for (size_t t = 0; t < c.n; ++t)
      for (size_t j = 0; j < c.top_k; ++j) {  // different experts per token, the first ones more often
        uint32_t e;
        do {
          noise(seed);
          const uint32_t draw = seed >> 8;
          e = static_cast<uint32_t>(draw % 3 == 0 ? draw / 3 % c.n_experts
                                                  : draw / 3 % (c.n_experts / 2 + 1));
        } while (std::find(ids.end() - static_cast<ptrdiff_t>(j), ids.end(), e) != ids.end());
        ids.push_back(e);
      }
    device_ids.emplace(ids);
    want = residual;
    for (size_t t = 0; t < c.n; ++t) {
      std::vector<float> total(c.d);
      for (size_t j = 0; j < c.top_k; ++j) {
        const auto y = experts[ids[t * c.top_k + j]].compute(&x[t * c.d], exact, c.clamp);
        for (size_t i = 0; i < c.d; ++i) total[i] = std::fma(weights[t * c.top_k + j], y[i], total[i]);
      }
      for (size_t i = 0; c.shared && i < c.d; ++i)
        total[i] = std::fma(c.gated ? sigmoid(gates[t]) : 1.0f, shared[t * c.d + i], total[i]);
      for (size_t i = 0; i < c.d; ++i) want[t * c.d + i] += total[i];
    }
    work.layout = expert_layout(experts[0].bound(experts[0].record.data()), c.clamp);
    work.exact = exact;
    work.x = vectors.vectors;
    work.top_k = c.top_k;
    work.n_experts = c.n_experts;
    work.ids = device_ids->get();
    work.weights = device_weights.get();
    scratch = DeviceBuffer(experts_scratch(work.layout, c.n, c.top_k, c.n_experts, exact), "scratch");
    check_cuda(cudaMemset(scratch.as(), 0xff, scratch.size()), "poison");
    work.scratch = scratch.as();
    mail = DeviceBuffer(experts_mail(work.layout, c.top_k), "mail");
    check_cuda(cudaMemset(mail.as(), 0, mail.size()), "mail");
    work.mail = mail.as();
    sum.x = device_x.get();
    sum.x_stride = c.d;
    if (c.shared) sum.shared = device_shared.get();
    if (c.gated) sum.shared_gate = device_gates.get();
  }

  // Those experts with e % parts == part.
  DeviceArray<const std::byte*> table(size_t part, size_t parts) const {
    std::vector<const std::byte*> t(records.size(), nullptr);
    for (size_t e = part; e < records.size(); e += parts) t[e] = records[e].get();
    return DeviceArray<const std::byte*>(t);
  }

  std::vector<float> x, residual, weights, shared, gates;
  std::vector<uint32_t> ids;
  std::vector<TestExpert> experts;
  std::vector<DeviceArray<std::byte>> records;
  TestVectors vectors;
  DeviceArray<float> device_weights, device_shared, device_gates, device_x;
  std::optional<DeviceArray<uint32_t>> device_ids;
  std::vector<float> want;
  DeviceBuffer scratch, mail;
  ExpertWork work;
  ExpertSum sum;
};

const MatrixFormat k4 = MatrixFormat::affine(4, 64), k8 = MatrixFormat::affine(8, 64),
                   kMx = MatrixFormat::mxfp4(), kBf16 = MatrixFormat::plain(MatrixType::Bf16),
                   k4g32 = MatrixFormat::affine(4, 32), k4g128 = MatrixFormat::affine(4, 128),
                   kF8 = MatrixFormat::fp8();

const Case kCases[] = {
    {{k4, k4, k4}, 128, 192, 1, 4, 8},
    {{k4, k4, k4}, 128, 192, 3, 4, 8, false, 0, true, true},
    {{k4, k4, k4}, 192, 256, 90, 4, 8, false, 0, true, false},
    {{k4g128, k4g128, k4g128}, 128, 256, 50, 2, 6},
    {{k4g32, k4g32, k4g32}, 96, 160, 40, 3, 5},
    {{k8, k8, k8}, 64, 128, 70, 2, 4},
    {{k4, k4, k4}, 192, 128, 2, 10, 12, false, 0, true, true},  // more picks than warps of a block
    {{k4, k4, k4}, 1088, 64, 1, 2, 3},
    {{k4g128, k4g128, k4g128}, 128, 256, 1, 2, 6},
    {{k4g32, k4g32, k4g32}, 96, 160, 5, 3, 5, true},
    {{k8, k8, k8}, 320, 128, 1, 2, 4},
    {{kMx, kMx, kMx}, 96, 96, 1, 4, 6, true, 7.0f},
    {{kMx, kMx, kMx}, 96, 96, 100, 4, 6, true, 7.0f},
    {{k4, k8, k8}, 64, 128, 1, 2, 4},
    {{k4, k8, kBf16}, 64, 128, 45, 2, 4, true},
    {{kBf16, kBf16, kBf16}, 40, 72, 33, 3, 5},
    {{kF8, kF8, kF8}, 128, 128, 20, 2, 3},
    {{k4, k4, kBf16}, 64, 128, 80, 2, 4},
};

TEST_F(CudaExperts, HaveTheBitsOfThePlainVersion) {
  for (const Case& c : kCases)
    for (const bool exact : {false, true}) {
      Fixture f(c, exact);
      experts(f.work, f.table(0, 1).get(), f.sum, nullptr);
      ASSERT_EQ(f.device_x.values(), f.want) << to_string(c.formats[0]) << " " << to_string(c.formats[2])
                                             << " n " << c.n << (exact ? " exact" : "");
    }
}

// A shared expert that lies in another order than the others: computed with them or on its own.
TEST_F(CudaExperts, ASharedExpertCanBeJoined) {
  const Case cases[] = {{{k4, k4, k4}, 128, 192, 1, 8, 12},
                        {{k4, k4, k4}, 192, 256, 3, 4, 8, false, 0, true, true},
                        {{k4, k4, k4}, 64, 128, 2, 10, 12, true, 0, true, true},
                        {{kMx, kMx, kMx}, 96, 96, 8, 4, 6}};
  for (const Case& c : cases) {
    Fixture apart(c, false), joined(c, false);
    const TestExpert shared(c.formats, c.width, c.d, false, 9);
    std::vector<std::byte> reversed;
    ExpertLayout layout = expert_layout(shared.bound(shared.record.data()));
    ExpertLayout::Part* parts[] = {&layout.down, &layout.up, &layout.gate};
    const TestMatrix* matrices[] = {&shared.down, &shared.up, &shared.gate};
    for (size_t i = 0; i < 3; ++i) {
      reversed.resize((reversed.size() + 63) / 64 * 64);
      parts[i]->offset = static_cast<ptrdiff_t>(reversed.size());
      const auto bytes = std::as_bytes(std::span(matrices[i]->bytes));
      reversed.insert(reversed.end(), bytes.begin(), bytes.end());
    }
    const DeviceArray<std::byte> record(reversed);
    const DeviceBuffer scratch(mlp_scratch(layout, c.n, false), "scratch");
    const DeviceArray<float> result(c.n * c.d);
    mlp({.layout = layout,
         .record = record.get(),
         .x = apart.work.x,
         .out = result.get(),
         .out_stride = c.d,
         .scratch = scratch.as()},
        nullptr);
    apart.sum.shared = result.get();
    experts(apart.work, apart.table(0, 1).get(), apart.sum, nullptr);

    ASSERT_TRUE(can_join(joined.work, layout));
    joined.sum.shared = nullptr;
    joined.work.shared = record.get();
    joined.work.shared_layout = layout;
    experts(joined.work, joined.table(0, 1).get(), joined.sum, nullptr);
    EXPECT_EQ(joined.device_x.values(), apart.device_x.values()) << to_string(c.formats[0]) << " n " << c.n;
  }
  const Case other{{k4, k4, k4}, 256, 192, 1, 8, 12};
  const TestExpert wider(other.formats, 512, 192, false, 9);
  EXPECT_FALSE(can_join(Fixture(other, false).work, expert_layout(wider.bound(wider.record.data()))));
}

// What one launch leaves behind is what the next expects.
TEST_F(CudaExperts, LaunchesMayFollowEachOther) {
  const Case c{{k4, k4, k4}, 192, 256, 1, 8, 12};
  Fixture once(c, false), often(c, false);
  const auto table = often.table(0, 1);
  once.work.mail = nullptr;  // two launches
  for (int i = 0; i < 20; ++i) {
    experts(often.work, table.get(), often.sum, nullptr);
    check_cuda(cudaDeviceSynchronize(), "experts");
    experts(once.work, table.get(), once.sum, nullptr);
  }
  EXPECT_EQ(often.device_x.values(), once.device_x.values());
}

struct ChoiceCase {
  Case experts;
  MatrixFormat router;
  RouterRule rule;
};

// Told of the choice by the launch that makes it, or looking for it when that has ended: layer after layer on
// the same residual stream, so that the choices differ.
void compare_choices(const ChoiceCase& c, bool gated) {
  const size_t d = c.experts.d, n_experts = c.experts.n_experts, k = c.experts.top_k;
  const std::string name =
      to_string(c.router) + ", " + std::to_string(n_experts) + " experts, " + std::to_string(d) + " wide";
  const TestMatrix router(c.router, n_experts, d, 3), gate(c.router, 1, d, 5);
  const DeviceMatrix on_device[] = {DeviceMatrix(router), DeviceMatrix(gate)};
  const TestExpert shared(c.experts.formats, c.experts.width, d, false, 9);
  const DeviceArray<std::byte> shared_record(shared.record);
  const DeviceArray<float> norm(noise_vector(d, 6)), bias(noise_vector(n_experts, 7)),
      score_bias(std::vector<float>(c.rule.score_bias.begin(), c.rule.score_bias.end()));
  RouterRule rule = c.rule;
  rule.top_k = k;
  if (!rule.score_bias.empty()) rule.score_bias = {score_bias.get(), n_experts};

  std::vector<float> results[2], weights[2];
  std::vector<uint32_t> ids[2];
  for (const bool told : {false, true}) {
    Fixture f(c.experts, false);
    const auto table = f.table(0, 1);
    const TestVectors h(std::vector<float>(d), d);
    const DeviceArray<float> logits(n_experts), gate_logit(1), chosen_weights(k);
    const DeviceArray<uint32_t> chosen_ids(k);
    const DeviceBuffer mail(entry_mail(n_experts + 1), "mail");
    check_cuda(cudaMemset(mail.as(), 0, mail.size()), "mail");
    Entry entry{.x = f.device_x.get(),
                .w = norm.get(),
                .eps = 1e-6f,
                .h = h.vectors,
                .small = {{on_device[0].view, bias.get(), logits.get()}},
                .rule = &rule,
                .ids = chosen_ids.get(),
                .weights = chosen_weights.get(),
                .mail = mail.as()};
    f.work.x = h.vectors;
    f.work.ids = chosen_ids.get();
    f.work.weights = chosen_weights.get();
    if (gated) {
      entry.small[1] = {on_device[1].view, nullptr, gate_logit.get()};
      f.work.shared = shared_record.get();
      f.work.shared_layout = expert_layout(shared.bound(shared.record.data()), c.experts.clamp);
      f.sum.shared_gate = gate_logit.get();
    }
    ASSERT_TRUE(entry_can(entry)) << name;
    if (told && !hears_choice(f.work)) continue;  // of a device that has no launches for it
    if (told) entry.records = table.get(), entry.expert_mail = f.work.mail;
    f.work.told = told;
    for (int layer = 0; layer < 6; ++layer) {
      enter(entry, nullptr);
      experts(f.work, table.get(), f.sum, nullptr);
    }
    results[told] = f.device_x.values();
    weights[told] = chosen_weights.values();
    ids[told] = chosen_ids.values();
    if (!told) continue;
    EXPECT_EQ(ids[1], ids[0]) << name;
    EXPECT_EQ(weights[1], weights[0]) << name;
    EXPECT_EQ(results[1], results[0]) << name;
  }
}

TEST_F(CudaExperts, MayBeToldOfTheChoiceWhileItIsMade) {
  const MatrixFormat f32 = MatrixFormat::plain(MatrixType::F32), f16 = MatrixFormat::plain(MatrixType::F16);
  const std::vector<float> bias = noise_vector(64, 11);
  RouterRule softmax, late;
  softmax.norm = true;
  late.kind = RouterRule::TopkSoftmax;
  const RouterRule grouped{.kind = RouterRule::Sigmoid,
                           .n_groups = 8,
                           .top_groups = 4,
                           .norm = true,
                           .norm_eps = 1e-20f,
                           .scaling = 2.5f,
                           .score_bias = bias};
  for (const bool gated : {false, true}) {
    compare_choices({{{k4, k4, k4}, 128, 192, 1, 4, 8}, kBf16, softmax}, gated);
    compare_choices({{{kMx, kMx, kMx}, 96, 96, 1, 4, 6, true, 7.0f}, kBf16, late}, false);
    compare_choices({{{k8, k8, k8}, 64, 320, 1, 8, 64}, f32, grouped}, gated);
    compare_choices({{{k4, k4, k4}, 64, 2048, 1, 8, 140}, kBf16, softmax}, gated);
    compare_choices({{{k4g32, k4g32, k4g32}, 64, 128, 1, 3, 5}, f16, late}, gated);
    compare_choices({{{k4, k4, k4}, 64, 64, 1, 10, 512}, k8, softmax}, gated);
  }
}

TEST_F(CudaExperts, PortionsChangeNothing) {
  for (const Case& c : kCases) {
    Fixture f(c, false);
    group_experts(f.work, nullptr);
    for (size_t part = 0; part < 3; ++part) {
      const auto table = f.table(part, 3);
      compute_experts(f.work, table.get(), nullptr);
      check_cuda(cudaDeviceSynchronize(), "a portion");
    }
    combine_experts(f.work, f.sum, {}, nullptr);
    ASSERT_EQ(f.device_x.values(), f.want)
        << to_string(c.formats[0]) << " " << to_string(c.formats[2]) << " n " << c.n;
  }
}

TEST_F(CudaExperts, ResultsMayComeFromTheHost) {
  for (const Case& c : kCases) {
    if (c.n * c.top_k > Elsewhere::kMostPicks) continue;
    Fixture f(c, false);
    group_experts(f.work, nullptr);
    // A portion's table, too, may be the host's.
    const PinnedBuffer table(c.n_experts * sizeof(std::byte*), "table"),
        results(c.n * c.top_k * c.d * sizeof(float), "results");
    for (size_t e = 0; e < c.n_experts; ++e)
      table.as<std::byte*>()[e] = e % 3 == 1 ? nullptr : f.records[e].get();
    compute_experts(f.work, table.as<const std::byte*>(), nullptr);
    Elsewhere elsewhere{.results = results.as<float>()};
    uint8_t n = 0;
    for (size_t p = c.n * c.top_k; p-- > 0;) {
      const bool here = f.ids[p] % 3 != 1;
      elsewhere.row[p] = here ? Elsewhere::kNot : n;
      if (here) continue;
      const auto y = f.experts[f.ids[p]].compute(&f.x[p / c.top_k * c.d], false, c.clamp);
      std::ranges::copy(y, results.as<float>() + n++ * c.d);
    }
    combine_experts(f.work, f.sum, elsewhere, nullptr);
    ASSERT_EQ(f.device_x.values(), f.want)
        << to_string(c.formats[0]) << " " << to_string(c.formats[2]) << " n " << c.n;
  }
}

TEST_F(CudaExperts, ScratchOfALargerBatchServesASmallerOne) {
  const Case large{{k4, k4, k4}, 128, 192, 200, 4, 8}, small{{k4, k4, k4}, 128, 192, 1, 4, 8};
  Fixture f(large, false), g(small, false);
  experts(f.work, f.table(0, 1).get(), f.sum, nullptr);
  g.work.scratch = f.work.scratch;
  experts(g.work, g.table(0, 1).get(), g.sum, nullptr);
  EXPECT_EQ(f.device_x.values(), f.want);
  EXPECT_EQ(g.device_x.values(), g.want);
}

TEST_F(CudaExperts, DenseParts) {
  for (const Case& c : kCases)
    for (const bool exact : {false, true})
      for (const bool add : {false, true}) {
        const TestExpert expert(c.formats, c.width, c.d, c.biased, 5);
        const DeviceArray<std::byte> record(expert.record);
        const auto x = noise_vector(c.n * c.d, 3);
        const TestVectors v(x, c.d);
        auto want = noise_vector(c.n * c.d, 4);
        const DeviceArray<float> out(want);
        const ExpertLayout layout = expert_layout(expert.bound(expert.record.data()), c.clamp);
        const DeviceBuffer scratch(mlp_scratch(layout, c.n, exact), "scratch");
        mlp({.layout = layout,
             .record = record.get(),
             .exact = exact,
             .add = add,
             .x = v.vectors,
             .out = out.get(),
             .out_stride = c.d,
             .scratch = scratch.as()},
            nullptr);
        for (size_t t = 0; t < c.n; ++t) {
          const auto y = expert.compute(&x[t * c.d], exact, c.clamp);
          for (size_t i = 0; i < c.d; ++i) want[t * c.d + i] = add ? want[t * c.d + i] + y[i] : y[i];
        }
        ASSERT_EQ(out.values(), want) << to_string(c.formats[0]) << " n " << c.n << (exact ? " exact" : "");
      }
}

}  // namespace
}  // namespace moeflux::cuda
