#include <cmath>
#include <vector>

#include "ops/delta.h"

namespace moeflux {
namespace {

// out[j] = factor * sum_i S[i][j] x[i], i ascending.
void read_state(const DeltaHead& h, const float* x, float factor, float* out) {
  for (size_t j = 0; j < h.value_dim; ++j) out[j] = 0;
  for (size_t i = 0; i < h.key_dim; ++i)
    for (size_t j = 0; j < h.value_dim; ++j) out[j] += h.state[i * h.value_dim + j] * x[i];
  for (size_t j = 0; j < h.value_dim; ++j) out[j] *= factor;
}

// x . k_t, components ascending.
float key_product(const DeltaHead& h, const float* x, size_t t) {
  float sum = 0;
  for (size_t i = 0; i < h.key_dim; ++i) sum += x[i] * h.keys[i * kDeltaBlock + t];
  return sum;
}

void fold_block(const DeltaHead& h) {
  const float last = h.decay[kDeltaBlock - 1], keep = std::exp(last);
  for (size_t i = 0; i < h.key_dim * h.value_dim; ++i) h.state[i] *= keep;
  for (size_t t = 0; t < kDeltaBlock; ++t) {
    const float factor = std::exp(last - h.decay[t]);
    for (size_t i = 0; i < h.key_dim; ++i) {
      const float k = factor * h.keys[i * kDeltaBlock + t];
      for (size_t j = 0; j < h.value_dim; ++j)
        h.state[i * h.value_dim + j] += k * h.values[t * h.value_dim + j];
    }
  }
}

}  // namespace

void delta_step_ref(const DeltaHead& h, size_t index, const float* q, const float* k, const float* v,
                    float beta, float g, float* out) {
  const float total = index > 0 ? h.decay[index - 1] + g : g;
  h.decay[index] = total;
  for (size_t i = 0; i < h.key_dim; ++i) h.keys[i * kDeltaBlock + index] = k[i];

  float* fresh = h.values + index * h.value_dim;
  std::vector<float> sum(h.value_dim);
  read_state(h, k, std::exp(total), sum.data());
  for (size_t t = 0; t < index; ++t) {
    const float factor = std::exp(total - h.decay[t]) * key_product(h, k, t);
    for (size_t j = 0; j < h.value_dim; ++j) sum[j] += factor * h.values[t * h.value_dim + j];
  }
  for (size_t j = 0; j < h.value_dim; ++j) fresh[j] = beta * (v[j] - sum[j]);

  read_state(h, q, std::exp(total), out);
  for (size_t t = 0; t <= index; ++t) {
    const float factor = std::exp(total - h.decay[t]) * key_product(h, q, t);
    for (size_t j = 0; j < h.value_dim; ++j) out[j] += factor * h.values[t * h.value_dim + j];
  }
  if (index + 1 == kDeltaBlock) fold_block(h);
}

}  // namespace moeflux
