// Small vector operations: norms, activations, softmax, rotary embedding.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

namespace moeflux {

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
inline float silu(float x) { return x * sigmoid(x); }
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
