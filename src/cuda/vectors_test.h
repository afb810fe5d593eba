// Vectors in device memory with their int8 form, for tests.
#pragma once

#include "cuda/device_test.h"
#include "cuda/linear.h"
#include "ops/test_matrix.h"

namespace moeflux::cuda {

inline std::vector<float> noise_vector(size_t n, uint32_t seed, float scale = 1) {
  std::vector<float> v(n);
  for (float& x : v) x = noise(seed) * scale;
  return v;
}

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
