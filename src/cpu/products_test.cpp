#include "cpu/products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/test_matrix.h"

namespace moeflux {
namespace {

const MatrixFormat kFormat = MatrixFormat::affine(4, 64);

std::vector<float> noise_of(size_t n, size_t first) {
  std::vector<float> x(n);
  auto seed = static_cast<uint32_t>(first);
  for (float& v : x) v = noise(seed);
  return x;
}

// Room for vectors, quantised.
Panel filled(Activations& room, const Ops& ops, size_t n, size_t cols, size_t seed) {
  const Panel panel = room.make(n, cols);
  const std::vector<float> x = noise_of(n * cols, seed);
  std::ranges::copy(x, const_cast<float*>(panel.f));
  for (size_t t = 0; t < n; ++t) ops.quantise(panel.f + t * cols, panel, t);
  return panel;
}

// As many vectors as experts of a few texts have, and more: in the first, threads take long pieces.
constexpr size_t kFew[] = {1, 8, 3}, kMany[] = {1, 40, 3};

TEST(ProductsThreads, EveryRowIsTheReferences) {
  constexpr size_t kRows = 16 * 61 + 5, kCols = 256;
  for (const size_t threads : {1, 2, 3, 7})
    for (const auto& counts : {kFew, kMany}) {
      WorkerPool pool(threads);
      const Ops& ops = choose_ops("auto");
      Products products(ops, pool, Precision::Fast);
      Activations room[3];
      std::vector<TestMatrix> w;
      std::vector<float> out[3];
      std::vector<Product> jobs;
      for (size_t i = 0; i < 3; ++i) {
        w.emplace_back(kFormat, kRows, kCols, 3 + i);
        out[i].assign(counts[i] * kRows, NAN);
      }
      for (size_t i = 0; i < 3; ++i)
        jobs.push_back({w[i].view,
                        {},
                        filled(room[i], ops, counts[i], kCols, 20 + i),
                        nullptr,
                        counts[i],
                        out[i].data(),
                        kRows});
      products.run(jobs);
      for (size_t i = 0; i < 3; ++i) {
        std::vector<float> want(out[i].size());
        linear_fast_ref(w[i].view, 0, kRows, jobs[i].x.f, counts[i], kCols, want.data(), kRows);
        EXPECT_EQ(out[i], want) << threads << " threads, " << counts[i] << " vectors";
      }
    }
}

// With rows from inside a block too, and vectors that are picked.
TEST(ProductsThreads, FineProductsAddWhatTheInt8FormLeavesOver) {
  constexpr size_t kRows = 16 * 61, kCols = 256;
  WorkerPool pool(2);
  const Ops& ops = choose_ops("auto");
  Products products(ops, pool, Precision::Fast);
  const TestMatrix w(kFormat, kRows, kCols, 3);
  for (const size_t n : {1, 3, 7, 40, 300})
    for (const auto& [first, rows] : {std::pair<size_t, size_t>{0, 0}, {16 * 7, 16 * 30}, {5, 20}})
      for (const bool backwards : {false, true}) {
        Activations room;
        const Panel x = filled(room, ops, 2 * n, kCols, 20);
        std::vector<uint32_t> pick;
        for (size_t t = 0; t < n; ++t) {
          float* rest = const_cast<float*>(x.f) + (n + t) * kCols;
          ops.remainder(x.f + t * kCols, x, t, rest);
          ops.quantise(rest, x, n + t);
          pick.push_back(static_cast<uint32_t>(backwards ? n - 1 - t : t));
        }
        Product p{w.view, {}, x, backwards ? pick.data() : nullptr, n, nullptr, rows ? rows : kRows};
        std::vector<float> out(n * p.out_stride, NAN), want(2 * n * p.out_stride);
        p.out = out.data();
        p.first_row = first;
        p.rows = rows;
        p.fine = true;
        products.run({&p, 1});
        linear_fast_ref(w.view, first, p.out_stride, x.f, 2 * n, kCols, want.data(), p.out_stride);
        for (size_t t = 0; t < n; ++t)
          for (size_t r = 0; r < p.out_stride; ++r)
            ASSERT_EQ(out[t * p.out_stride + r],
                      want[pick[t] * p.out_stride + r] + want[(n + pick[t]) * p.out_stride + r])
                << n << " vectors, row " << first + r;
      }
}

// The int8 form of the hidden vectors, for experts of several sizes. With many threads they are quantised
// when they are complete.
TEST(ProductsThreads, EveryHiddenVectorIsTheReferences) {
  constexpr size_t kCols = 256, kWidth[] = {1024, 840, 2300};
  for (const size_t threads : {1, 2, 3, 24})
    for (const auto& counts : {kFew, kMany}) {
      WorkerPool pool(threads);
      const Ops& ops = choose_ops("auto");
      Products products(ops, pool, Precision::Fast);
      Activations room[3], hidden[3];
      std::vector<TestMatrix> w;
      std::vector<MlpWeights> mlp(3);
      std::vector<GatedProduct> jobs;
      for (size_t i = 0; i < 3; ++i) {
        w.emplace_back(kFormat, kWidth[i], kCols, 3 + i);
        w.emplace_back(kFormat, kWidth[i], kCols, 13 + i);
        w.emplace_back(kFormat, kCols, kWidth[i], 23 + i);
      }
      for (size_t i = 0; i < 3; ++i) {
        mlp[i] = {{w[3 * i].view, {}}, {w[3 * i + 1].view, {}}, {w[3 * i + 2].view, {}}};
        jobs.push_back({&mlp[i], Activation::Swiglu, 0, filled(room[i], ops, counts[i], kCols, 20 + i),
                        nullptr, counts[i], filled(hidden[i], ops, counts[i], kWidth[i], 1)});
      }
      products.run(jobs);
      for (size_t i = 0; i < 3; ++i) {
        const size_t n = counts[i], rows = kWidth[i];
        std::vector<float> gate(n * rows), up(n * rows);
        linear_fast_ref(mlp[i].gate.w, 0, rows, jobs[i].x.f, n, kCols, gate.data(), rows);
        linear_fast_ref(mlp[i].up.w, 0, rows, jobs[i].x.f, n, kCols, up.data(), rows);
        Activations other;
        const Panel want = other.make(n, rows), got = jobs[i].hidden;
        for (size_t t = 0; t < n; ++t) {
          ops.swiglu(&gate[t * rows], &up[t * rows], rows, &gate[t * rows]);
          ops.quantise(&gate[t * rows], want, t);
        }
        const size_t spans = span_count(rows);
        EXPECT_EQ(std::memcmp(got.q, want.q, n * spans * 64), 0)
            << threads << " threads, " << n << " vectors";
        for (size_t s = 0; s < n * spans; ++s) ASSERT_EQ(got.scale[s].xs, want.scale[s].xs);
      }
    }
}

}  // namespace
}  // namespace moeflux
