#include "ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/test_matrix.h"

namespace moeflux {
namespace {

TEST(Linear, ExactIsTheSumOfDecodedProducts) {
  for (const MatrixFormat& f : test_formats())
    for (const size_t cols : {32, 64, 96, 100, 320, 1024}) {
      if (f.group && cols % f.group) continue;
      const TestMatrix m(f, 19, cols, 7);
      std::vector<float> x(2 * cols), y(2 * 19), row(cols);
      uint32_t seed = 3;
      for (float& v : x) v = noise(seed);
      linear_exact_ref(m.view, 0, 19, x.data(), 2, cols, y.data(), 19);
      for (size_t t = 0; t < 2; ++t)
        for (size_t r = 0; r < 19; ++r) {
          dequantise_row(m.view, r, row.data());
          double want = 0, size = 0;
          for (size_t c = 0; c < cols; ++c)
            want += double{row[c]} * x[t * cols + c], size += std::fabs(double{row[c]} * x[t * cols + c]);
          EXPECT_NEAR(y[t * 19 + r], want, 1e-6 * size) << to_string(f) << " " << cols;
        }
    }
}

TEST(Linear, FastStaysWithinTwoPercentOfExact) {
  for (const MatrixFormat& f : test_formats())
    for (const size_t cols : {64, 96, 768, 2048}) {
      if (f.group && cols % f.group) continue;
      const TestMatrix m(f, 33, cols, 11);
      std::vector<float> x(cols), exact(33), fast(33);
      uint32_t seed = 5;
      for (float& v : x) v = noise(seed) + noise(seed);
      linear_exact_ref(m.view, 0, 33, x.data(), 1, cols, exact.data(), 33);
      linear_fast_ref(m.view, 0, 33, x.data(), 1, cols, fast.data(), 33);
      double difference = 0, size = 0;
      for (size_t r = 0; r < 33; ++r) {
        difference += std::pow(double{fast[r]} - exact[r], 2);
        size += std::pow(double{exact[r]}, 2);
      }
      EXPECT_LT(std::sqrt(difference / size), 0.02) << to_string(f) << " " << cols;
    }
}

TEST(Linear, RowsAndVectorsDoNotInfluenceEachOther) {
  const TestMatrix m(MatrixFormat::affine(4, 64), 32, 256, 13);
  std::vector<float> x(5 * 256), all(5 * 32), one(4);
  uint32_t seed = 17;
  for (float& v : x) v = noise(seed);
  for (const auto linear : {linear_exact_ref, linear_fast_ref}) {
    linear(m.view, 0, 32, x.data(), 5, 256, all.data(), 32);
    linear(m.view, 20, 4, x.data() + 3 * 256, 1, 256, one.data(), 4);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(one[i], all[3 * 32 + 20 + i]);
  }
}

TEST(Linear, QuantisedVectorsRoundToEvenAndKeepZero) {
  std::vector<float> x(70, 0.0f);
  x[0] = 127, x[1] = 0.5f, x[2] = 1.5f, x[3] = -2.5f;
  const QuantisedVector q = quantise_vector(x);
  EXPECT_EQ(q.q[0], 127);
  EXPECT_EQ(q.q[1], 0);
  EXPECT_EQ(q.q[2], 2);
  EXPECT_EQ(q.q[3], -2);
  EXPECT_EQ(q.scale[0], 1.0f);
  EXPECT_EQ(q.scale[1], 0.0f);
  EXPECT_EQ(q.q.size(), 128u);
}

TEST(Linear, TransposedProduct) {
  const TestMatrix m(MatrixFormat::plain(MatrixType::Bf16), 20, 70, 19);
  std::vector<float> x(20), y(70), row(70);
  uint32_t seed = 23;
  for (float& v : x) v = noise(seed);
  linear_transposed_ref(m.view, 4, 8, x.data(), y.data());
  for (size_t c = 0; c < 70; ++c) {
    double want = 0;
    for (size_t r = 0; r < 8; ++r) {
      dequantise_row(m.view, 4 + r, row.data());
      want += double{row[c]} * x[r];
    }
    EXPECT_NEAR(y[c], want, 1e-5);
  }
}

}  // namespace
}  // namespace moeflux
