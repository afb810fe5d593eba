#include <algorithm>

#include "ops/linear.h"
#include "ops/pointwise.h"

namespace moeflux {
namespace {

void softmax(float* x, size_t n, float most, float extra) {
  float sum = 0;
  for (size_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - most);
  sum += extra;
  for (size_t i = 0; i < n; ++i) x[i] /= sum;
}

}  // namespace

void rms_norm_ref(std::span<const float> x, std::span<const float> w, float eps, float* out) {
  const float mean = dot(x.data(), x.data(), x.size()) / static_cast<float>(x.size());
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (size_t i = 0; i < x.size(); ++i) out[i] = w[i] * (x[i] * inverse);
}

void swiglu_ref(const float* gate, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = silu(gate[i]) * up[i];
}

void clamped_swiglu_ref(const float* gate, const float* up, size_t n, float limit, float* out) {
  for (size_t i = 0; i < n; ++i) {
    const float g = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit);
    out[i] = (u + 1.0f) * (g * sigmoid(1.702f * g));
  }
}

void softmax_ref(float* x, size_t n) { softmax(x, n, *std::max_element(x, x + n), 0.0f); }

void softmax_ref(float* x, size_t n, float sink) {
  const float most = std::max(*std::max_element(x, x + n), sink);
  softmax(x, n, most, std::exp(sink - most));
}

void rope_ref(float* x, std::span<const float> inv_freq, float scale, bool interleaved, size_t position) {
  const size_t half = inv_freq.size();
  for (size_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    const float c = std::cos(angle) * scale, s = std::sin(angle) * scale;
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float a0 = a, b0 = b;
    a = a0 * c - b0 * s;
    b = b0 * c + a0 * s;
  }
}

}  // namespace moeflux
