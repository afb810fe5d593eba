// Small vector operations: norms, activations, softmax, rotary embedding.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moeflux {

// The exponential of activations: every backend computes these operations, so that an expert's result has the
// same bits everywhere. Relative error below 2e-7 in [-87, 88], beyond which x is clamped.
inline constexpr float kExpLow = -87.0f, kExpHigh = 88.0f, kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.63p-1f, kLn2Low = -0x1.bd0106p-13f;  // the high part has 9 bits
inline constexpr float kExpTerms[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                                      1.0f / 6,    0.5f,       1.0f,       1.0f};  // highest power first

inline float exp_activation(float x) {
  x = std::fmin(std::fmax(x, kExpLow), kExpHigh);
  const float n = std::nearbyint(x * kLog2E);
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float p = kExpTerms[0];
  for (int i = 1; i < 8; ++i) p = std::fma(p, r, kExpTerms[i]);
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_activation(-x)); }
inline float silu(float x) { return x / (1.0f + exp_activation(-x)); }
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// out = w * (x / sqrt(mean(x^2) + eps)); out may be x.
void rms_norm_ref(std::span<const float> x, std::span<const float> w, float eps, float* out);

// out = silu(gate) * up; out may be gate.
void swiglu_ref(const float* gate, const float* up, size_t n, float* out);

// gate = min(gate, limit), up = clamp(up, -limit, limit), out = (up + 1) * gate * sigmoid(1.702 gate).
void clamped_swiglu_ref(const float* gate, const float* up, size_t n, float limit, float* out);

// In place, over n >= 1 values. With a sink, that is one more logit which takes part in the denominator only.
void softmax_ref(float* x, size_t n);
void softmax_ref(float* x, size_t n, float sink);

// Rotates the first inv_freq.size() * 2 components of x by position * inv_freq; cos and sin are scaled.
// interleaved: pairs (2i, 2i+1), otherwise (i, i + half).
void rope_ref(float* x, std::span<const float> inv_freq, float scale, bool interleaved, size_t position);

}  // namespace moeflux
