// The CPU's operations as one table per instruction set, chosen once and handed down. Contracts and plain
// versions are in linear.h, pointwise.h, attention.h, delta.h and token_weight.h; every table keeps them with
// the same bits, whatever the width of its registers: all kernels work on sixteen lanes (lanes_*.h).
// Functions are noexcept, allocate nothing and may run on several threads at once on separate outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ops/attention.h"
#include "ops/delta.h"
#include "ops/linear.h"
#include "ops/token_weight.h"

namespace moeflux {

struct Ops {
  std::string_view name;

  // One vector: panel.q and panel.scale of its row `t` (linear.h's quantisation).
  void (*quantise)(const float* x, const Panel& panel, size_t t) noexcept;
  // What the panel's int8 form of its row `t` leaves over.
  void (*remainder)(const float* x, const Panel& panel, size_t t, float* r) noexcept;
  // Rows [16 * block, 16 * (block + blocks)) of the matrix for vectors [0, n) of the panel, those that `pick`
  // names where it is not null; out[t * out_stride + i] for row 16 * block + i. Rows beyond the matrix are
  // not written.
  void (*linear_fast)(const Tiles& m, size_t block, size_t blocks, const Panel& x, const uint32_t* pick,
                      size_t n, float* out, size_t out_stride) noexcept;
  void (*linear_exact)(const Tiles& m, size_t block, size_t blocks, const Panel& x, const uint32_t* pick,
                       size_t n, float* out, size_t out_stride) noexcept;

  void (*rms_norm)(const float* x, const float* w, size_t n, float eps, float* out) noexcept;
  void (*swiglu)(const float* gate, const float* up, size_t n, float* out) noexcept;
  void (*clamped_swiglu)(const float* gate, const float* up, size_t n, float limit, float* out) noexcept;
  void (*sigmoid_gate)(const float* gate, size_t n, float* x) noexcept;  // x *= sigmoid(gate)
  void (*silu_gate)(const float* gate, size_t n, float* x) noexcept;     // x *= silu(gate)
  void (*add_scaled)(const float* x, float factor, size_t n,
                     float* sum) noexcept;                                        // sum = fma(factor, x, sum)
  void (*scale_to_length)(float* x, size_t n, float eps, float length) noexcept;  // x *= length / |x|
  // y[c] = silu(sum_j taps[j][c] * rows[j][c]), j ascending; taps are `stride` floats apart.
  void (*conv_silu)(const float* const* rows, const float* taps, size_t stride, size_t width, size_t n,
                    float* y) noexcept;

  void (*store_key)(const KvHead& kv, size_t position, const float* key) noexcept;
  void (*store_value)(const KvHead& kv, size_t position, const float* value) noexcept;
  void (*attend)(const KvHead& kv, size_t begin, size_t end, float scale, const AttendRow* rows, size_t n,
                 float* scratch) noexcept;
  void (*attend_narrow)(const KvHead& kv, size_t begin, size_t end, float scale, const AttendRow* rows,
                        size_t n, float* scratch) noexcept;
  void (*merge_attention)(const AttendRow& part, const AttendRow& into, size_t value_dim) noexcept;
  void (*finish_attention)(const AttendRow& row, size_t value_dim, const float* sink) noexcept;

  void (*delta_block)(const DeltaHead& head, size_t index, size_t count, const DeltaTokens& tokens,
                      float* scratch) noexcept;

  // Sampling. maxima[b] is the largest of the 64 values of block b; true if all values are finite, and if
  // not, maxima of blocks with a NaN mean nothing.
  bool (*block_maxima)(const float* x, size_t blocks, float* maxima) noexcept;
  // sums[b] is the sum of the weights of block b, and out[i] the weight of x[i].
  void (*block_weights)(const float* x, const float* maxima, size_t blocks, const Weighing& weighing,
                        uint64_t* sums) noexcept;
  void (*token_weights)(const float* x, size_t n, const Weighing& weighing, uint64_t* out) noexcept;

  // Multiply-adds per call of each kind, for measuring what the processor can do at most.
  void (*peak_float)(size_t rounds) noexcept;
  void (*peak_int8)(size_t rounds) noexcept;
  // Reads memory in so many streams side by side, 1, 2 or 4: which is fastest differs between processors.
  void (*read_memory)(const void* data, size_t bytes, size_t streams) noexcept;
};

inline constexpr size_t kPeakOpsPerRound = 16 * 16 * 8;  // float multiply-adds; int8: four times as many

// The tables that this processor can run, best first; never empty.
std::span<const Ops* const> runnable_ops();
// The table of that name, or the best for "auto". Throws Error{Unsupported} naming those that can run.
const Ops& choose_ops(const std::string& name);

}  // namespace moeflux
