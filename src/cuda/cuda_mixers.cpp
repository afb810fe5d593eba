// How the cuda backend mixes tokens: grouped attention, latent attention and the gated delta net.
#include <algorithm>
#include <bit>

#include "cuda/cuda_stages.h"
#include "cuda/delta.h"
#include "cuda/flash.h"
#include "cuda/pointwise.h"
#include "ops/linear.h"

namespace moeflux::cuda {
namespace {

constexpr size_t kSplitTokens = 32;  // up to so many, the parts of a query are computed side by side
// How positions are cut into parts changes with the context's length in powers of two, from here on.
constexpr size_t kLeastContext = 256;

}  // namespace

void CudaBackend::add_product(const Linear& l, const Vectors& x, CudaStep& s) {
  linear({.w = on_device(l.w),
          .bias = on_device(l.bias),
          .x = x,
          .out = s.x,
          .out_stride = m_.d_model,
          .exact = !fast_,
          .add = true},
         stream_.get());
}

// One token: in one launch, where that can be.
void CudaBackend::norm_and_multiply(CudaStep& s, Vector w, std::span<Product> products) {
  if (can_norm(products))
    for (Product& p : products) p.unnormed = {s.x, on_device(w), m_.norm_eps};
  else
    norm(s, w);
  linear(products, stream_.get());
}

size_t CudaBackend::last_position(const CudaStep& s) const {
  size_t last = 0;
  for (const Slice& slice : s.batch.slices)
    last = std::max(last, slice.sequence->position() + slice.count - 1);
  return last;
}

size_t CudaBackend::context_bucket(const CudaStep& s) const {
  return std::bit_ceil(std::max(last_position(s) + 1, kLeastContext));
}

void CudaBackend::attend(const CudaStep& s, Attend a) {
  if (fast_ && flash_can(a)) {
    for (const Slice& slice : s.batch.slices) {  // each run of tokens of one sequence
      Attend run = a;
      run.n = slice.count;
      run.q += slice.first * a.n_heads * a.key_dim;
      run.out += slice.first * a.n_heads * a.value_dim;
      run.tokens += slice.first;
      if (run.gate) run.gate += slice.first * a.gate_stride;
      flash_prefill(run, slice.sequence->position(), stream_.get());
    }
    return;
  }
  if (a.n <= kSplitTokens) {
    const size_t seen = last_position(s) + 1, width = a.window ? std::min(a.window, seen) : seen;
    a.n_parts = std::min((width + kAttendPart - 2) / kAttendPart + 1, (seen - 1) / kAttendPart + 1);
    if (a.n_parts > 1) a.parts = parts_.get(attend_parts_floats(a.n, a.n_heads, a.value_dim, a.n_parts));
  }
  cuda::attend(a, stream_.get());
}

// -- softmax attention with grouped key/value heads

void CudaBackend::grouped_attention(CudaStep& s, const LayerWeights& layer) {
  const Vectors h = h_.make(s.n, m_.d_model, fast_);
  const AttentionWeights& w = layer.attention;
  const AttentionConfig& a = m_.attention;
  const size_t dim = a.head_dim, q_width = a.n_heads * dim, kv_width = a.n_kv_heads * dim;
  const size_t wide = a.gated ? 2 * q_width : q_width;
  float *raw = raw_.get(s.n * wide), *k = k_.get(s.n * kv_width), *v = v_.get(s.n * kv_width),
        *q = q_.get(s.n * q_width);
  const auto product = [&](const Linear& l, float* out, size_t stride) {
    return Product{.w = on_device(l.w),
                   .bias = on_device(l.bias),
                   .x = h,
                   .out = out,
                   .out_stride = stride,
                   .exact = !fast_};
  };
  Product products[] = {product(w.q, raw, wide), product(w.k, k, kv_width), product(w.v, v, kv_width)};
  norm_and_multiply(s, layer.attn_norm, products);

  const Vectors mixed = mixed_.make(s.n, q_width, fast_);
  const bool normed = a.qk_norm != QkNorm::None;
  const PrepareHeads prepare{.n = s.n,
                             .n_heads = a.n_heads,
                             .n_kv_heads = a.n_kv_heads,
                             .dim = dim,
                             .q = raw,
                             .k = k,
                             .v = v,
                             .q_stride = wide,
                             .q_head = wide / a.n_heads,
                             .q_norm = normed ? on_device(w.q_norm) : nullptr,
                             .k_norm = normed ? on_device(w.k_norm) : nullptr,
                             .whole = a.qk_norm == QkNorm::WholeVector,
                             .inverse = small_.get(2 * s.n),
                             .eps = m_.norm_eps,
                             .clip = a.clip_qkv,
                             .rope = s.rope,
                             .tokens = s.tokens,
                             .place = place(s, layer),
                             .kv = kv_,
                             .q_out = q};
  Attend all{.n = s.n,
             .n_heads = a.n_heads,
             .n_kv_heads = a.n_kv_heads,
             .key_dim = dim,
             .value_dim = dim,
             .q = q,
             .tokens = s.tokens,
             .place = place(s, layer),
             .window = layer.config->window,
             .kv = kv_,
             .scale = a.scale,
             .sinks = on_device(w.sinks),
             .gate = a.gated ? raw + dim : nullptr,
             .gate_stride = wide,
             .gate_head = 2 * dim,
             .out = mixed.f};
  if (fast_ && flash_can(all) && s.n <= kSplitTokens && s.each_one()) {
    const size_t most = context_bucket(s);
    all.n_parts = flash_parts(most, all.window);
    all.parts = parts_.get(flash_parts_floats(s.n, a.n_heads, dim, all.n_parts));
    flash_decode(prepare, all, most, mixed, counters(flash_counters(all, most)), stream_.get());
    return add_product(w.o, mixed, s);
  }
  prepare_heads(prepare, stream_.get());
  attend(s, all);
  if (fast_) quantise(mixed, stream_.get());
  add_product(w.o, mixed, s);
}

// -- multi-head latent attention, absorbed: the cache holds the latent and the rotated key only

void CudaBackend::latent_attention(CudaStep& s, const LayerWeights& layer) {
  const Vectors h = norm(s, layer.attn_norm);
  const MlaWeights& w = layer.mla;
  const MlaConfig& a = m_.mla;
  const size_t heads = m_.attention.n_heads, q_dim = a.nope_dim + a.rope_dim, width = a.kv_rank + a.rope_dim;
  float *q = raw_.get(s.n * heads * q_dim), *kv = k_.get(s.n * width);
  const Product kv_a{.w = on_device(w.kv_a.w),
                     .bias = on_device(w.kv_a.bias),
                     .x = h,
                     .out = kv,
                     .out_stride = width,
                     .exact = !fast_};
  if (w.q) {
    const Product products[] = {
        {.w = on_device(w.q), .x = h, .out = q, .out_stride = heads * q_dim, .exact = !fast_}, kv_a};
    linear(products, stream_.get());
  } else {
    float* low = v_.get(s.n * a.q_rank);
    const Product products[] = {{.w = on_device(w.q_a.w),
                                 .bias = on_device(w.q_a.bias),
                                 .x = h,
                                 .out = low,
                                 .out_stride = a.q_rank,
                                 .exact = !fast_},
                                kv_a};
    linear(products, stream_.get());
    const Vectors normed = latent_.make(s.n, a.q_rank, fast_);
    rms_norm(low, a.q_rank, nullptr, on_device(w.q_a_norm), kMlaNormEps, normed, stream_.get());
    linear({.w = on_device(w.q_b.w),
            .bias = on_device(w.q_b.bias),
            .x = normed,
            .out = q,
            .out_stride = heads * q_dim,
            .exact = !fast_},
           stream_.get());
  }

  // The query of each head in the latent's space, then its rotated part.
  const Vectors nope = nope_.make(s.n * heads, a.nope_dim, fast_ && w.k_up_t);
  float* absorbed = q_.get(s.n * heads * width);
  prepare_latent({.n = s.n,
                  .n_heads = heads,
                  .nope_dim = a.nope_dim,
                  .rope_dim = a.rope_dim,
                  .kv_rank = a.kv_rank,
                  .q = q,
                  .kv = kv,
                  .kv_norm = on_device(w.kv_a_norm),
                  .eps = kMlaNormEps,
                  .rope = s.rope,
                  .tokens = s.tokens,
                  .place = place(s, layer),
                  .kv_type = kv_,
                  .nope = nope,
                  .absorbed = absorbed},
                 stream_.get());
  if (w.k_up_t)
    linear({.w = on_device(w.k_up_t),
            .x = nope,
            .out = absorbed,
            .out_stride = heads * width,
            .exact = !fast_,
            .rows = a.kv_rank,
            .heads = heads,
            .head_stride = width},
           stream_.get());
  else
    linear_transposed({.w = on_device(w.k_up),
                       .rows = a.nope_dim,
                       .heads = heads,
                       .n = s.n,
                       .x = nope.f,
                       .x_stride = heads * a.nope_dim,
                       .x_head = a.nope_dim,
                       .out = absorbed,
                       .out_stride = heads * width,
                       .out_head = width},
                      stream_.get());

  const Vectors context = latent_.make(s.n * heads, a.kv_rank, fast_);
  attend(s, {.n = s.n,
             .n_heads = heads,
             .n_kv_heads = 1,
             .key_dim = width,
             .value_dim = a.kv_rank,
             .q = absorbed,
             .tokens = s.tokens,
             .place = place(s, layer),
             .window = 0,
             .kv = kv_,
             .scale = m_.attention.scale,
             .sinks = nullptr,
             .gate = nullptr,
             .gate_stride = 0,
             .gate_head = 0,
             .out = context.f});
  if (fast_) quantise(context, stream_.get());
  const Vectors mixed = mixed_.make(s.n, heads * a.value_dim, fast_);
  linear({.w = on_device(w.v_up),
          .x = context,
          .out = mixed.f,
          .out_stride = heads * a.value_dim,
          .exact = !fast_,
          .rows = a.value_dim,
          .heads = heads,
          .head_stride = a.value_dim},
         stream_.get());
  if (fast_) quantise(mixed, stream_.get());
  add_product(w.o, mixed, s);
}

// -- gated delta net

void CudaBackend::delta_net(CudaStep& s, const LayerWeights& layer) {
  const DeltaWeights& w = layer.delta;
  const DeltaConfig& d = m_.delta;
  const size_t channels = d.conv_channels(), values = d.value_channels(), heads = d.n_value_heads,
               qk = 2 * d.key_channels();
  float *u = raw_.get(s.n * channels), *z = q_.get(s.n * values), *b = k_.get(2 * s.n * heads),
        *a = b + s.n * heads;
  Entry entry{.x = s.x,
              .w = on_device(layer.attn_norm),
              .eps = m_.norm_eps,
              .h = h_.make(s.n, m_.d_model, fast_),
              .small = {{.w = on_device(w.b), .out = b}, {.w = on_device(w.a), .out = a}}};
  const bool singles = s.each_one() && s.n <= kMostGraphTokens;
  if (singles)
    entry.ahead = {s.slices, s.n, memory_->layers[layer.index].state, heads * d.key_dim * d.value_dim};
  const Vectors& h = entry.h;
  // As in the cpu backend: noise in q and k is amplified, so that their products are fine; b and a steer the
  // state's decay and stay in float.
  const bool fine = fast_ && has_integer_codes(w.qkv.format);
  if (fine) entry.rest = latent_.make(s.n, m_.d_model, true);
  const bool entered = enter(entry);
  const Vectors& rest = entry.rest;
  if (!entered) rms_norm(s.x, m_.d_model, nullptr, entry.w, m_.norm_eps, h, stream_.get());
  if (!entered && fine) quantise_rest(h, rest, stream_.get());
  const Product products[] = {{.w = on_device(w.qkv),
                               .x = h,
                               .out = u,
                               .out_stride = channels,
                               .exact = !fast_,
                               .rows = qk,
                               .rest = rest},
                              {.w = on_device(w.qkv),
                               .x = h,
                               .out = u + qk,
                               .out_stride = channels,
                               .exact = !fast_,
                               .first_row = qk,
                               .rows = values},
                              {.w = on_device(w.z), .x = h, .out = z, .out_stride = values, .exact = !fast_},
                              {.w = on_device(w.b), .x = h, .out = b, .out_stride = heads, .exact = true},
                              {.w = on_device(w.a), .x = h, .out = a, .out_stride = heads, .exact = true}};
  linear(std::span(products, entered ? 3 : 5), stream_.get());

  const Vectors mixed = mixed_.make(s.n, values, fast_);
  cuda::delta_net({.n = s.n,
                   .n_key_heads = d.n_key_heads,
                   .n_value_heads = heads,
                   .key_dim = d.key_dim,
                   .value_dim = d.value_dim,
                   .conv_width = d.conv_width,
                   .slices = s.slices,
                   .n_slices = s.batch.slices.size(),
                   .past = memory_->layers[layer.index].conv,
                   .state = memory_->layers[layer.index].state,
                   .u = u,
                   .z = z,
                   .b = b,
                   .a = a,
                   .z_stride = values,
                   .ba_stride = heads,
                   .conv = on_device(w.conv),
                   .a_log = on_device(w.a_log),
                   .dt_bias = on_device(w.dt_bias),
                   .norm = on_device(w.norm),
                   .eps = m_.norm_eps,
                   .unit_eps = kUnitEps,
                   .mixed = v_.get(s.n * channels),
                   .out = parts_.get(s.n * values),
                   .y = mixed,
                   .counters = singles ? counters(s.n * d.n_key_heads) : nullptr},
                  stream_.get());
  add_product({w.out, {}}, mixed, s);
}

}  // namespace moeflux::cuda
