#include "convert/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/numbers.h"

namespace moeflux {
namespace {

std::vector<float> bell(size_t n, uint32_t seed) {  // roughly normal, std 1
  std::vector<float> x(n);
  for (float& v : x) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      seed = seed * 1664525u + 1013904223u;
      sum += static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f;
    }
    v = sum * 0.8660254f;
  }
  return x;
}

TEST(Quantise, ErrorIsTheOneReportedAndBelowPlainRounding) {
  for (const size_t n : {32, 64, 128})
    for (const int bits : {4, 8}) {
      double fitted = 0, plain = 0, power = 0;
      for (uint32_t seed = 1; seed < 200; ++seed) {
        const std::vector<float> w = bell(n, seed);
        std::vector<uint8_t> codes(n);
        const QuantisedGroup q = quantise_affine(w.data(), n, bits, codes.data());
        const float scale = bf16_to_float(q.scale), bias = bf16_to_float(q.bias);
        double error = 0;
        float low = w[0], high = w[0];
        for (size_t i = 0; i < n; ++i) {
          ASSERT_LT(codes[i], 1 << bits);
          error += std::pow(w[i] - (scale * static_cast<float>(codes[i]) + bias), 2);
          low = std::min(low, w[i]), high = std::max(high, w[i]);
          power += w[i] * w[i];
        }
        EXPECT_NEAR(error, q.error, 1e-4 * error + 1e-9);
        fitted += error;
        const float step = (high - low) / static_cast<float>((1 << bits) - 1);
        for (size_t i = 0; i < n; ++i)
          plain += std::pow(w[i] - (low + step * std::round((w[i] - low) / step)), 2);
      }
      if (bits == 4) {
        EXPECT_LT(fitted, 0.95 * plain) << n;
      }
      EXPECT_LT(std::sqrt(fitted / power), bits == 4 ? 0.10 : 0.007) << n;
    }
}

TEST(Quantise, ConstantAndTinyGroups) {
  std::vector<uint8_t> codes(64);
  for (const float value : {0.0f, 0.5f, -3.0f, 1e-30f}) {
    const std::vector<float> w(64, value);
    const QuantisedGroup q = quantise_affine(w.data(), 64, 4, codes.data());
    for (const uint8_t c : codes)
      EXPECT_NEAR(bf16_to_float(q.scale) * c + bf16_to_float(q.bias), value, std::fabs(value) * 0.01)
          << value;
  }
}

TEST(Quantise, Mxfp4FindsItsOwnValues) {
  std::vector<float> w;
  for (int i = 0; i < 32; ++i) w.push_back(kE2m1[i % 16] * 0.25f);
  uint8_t codes[32];
  double error;
  EXPECT_EQ(quantise_mxfp4(w.data(), codes, &error), 125);
  EXPECT_EQ(error, 0);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(kE2m1[codes[i]], kE2m1[i % 16]);
}

}  // namespace
}  // namespace moeflux
