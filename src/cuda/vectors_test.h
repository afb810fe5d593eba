// Vectors in device memory with their int8 form, and matrices, for tests.
#pragma once

#include <cmath>

#include "cuda/device_test.h"
#include "cuda/linear.h"
#include "ops/test_matrix.h"

namespace moeflux::cuda {

inline std::vector<float> noise_vector(size_t n, uint32_t seed, float scale = 1) {
  std::vector<float> v(n);
  for (float& x : v) x = noise(seed) * scale;
  return v;
}

// Their squares have the same sum in every order, so that a norm has the same bits in every kernel.
inline std::vector<float> whole_numbers(size_t n, uint32_t seed) {
  std::vector<float> v = noise_vector(n, seed, 8);
  for (float& x : v) x = std::nearbyint(x);
  return v;
}

struct DeviceMatrix {
  explicit DeviceMatrix(const TestMatrix& m) : bytes(m.bytes), view(m.view) { view.data = bytes.get(); }
  DeviceArray<std::byte> bytes;
  MatrixView view;
};

struct TestVectors {
  TestVectors(const std::vector<float>& x, size_t cols)
      : f(x), q(x.size() / cols * span_count(cols) * 64), span(x.size() / cols * span_count(cols)) {
    vectors = {x.size() / cols, cols, f.get(), cols, q.get(), span.get()};
    quantise(vectors, nullptr);
  }
  DeviceArray<float> f;
  DeviceArray<int8_t> q;
  DeviceArray<QuantSpan> span;
  Vectors vectors;
};

}  // namespace moeflux::cuda
