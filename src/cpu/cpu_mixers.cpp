// How the cpu backend mixes tokens: grouped attention, latent attention and the gated delta net.
#include <algorithm>
#include <array>
#include <cmath>

#include "cpu/cpu_stages.h"
#include "ops/pointwise.h"

namespace moeflux {
namespace {

constexpr size_t kMostTaps = 64;  // of a convolution: what a config may have
constexpr size_t kRows = 64;      // queries that share an unpacked block of keys and values

}  // namespace

void CpuBackend::rope(const CpuStep& s, size_t token, float* x) const {
  const size_t half = m_.rope.inv_freq.size();
  const float *c = s.cosine + token * half, *sn = s.sine + token * half;
  if (m_.rope.interleaved)
    for (size_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * c[i] - b * sn[i];
      x[2 * i + 1] = b * c[i] + a * sn[i];
    }
  else
    for (size_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a * c[i] - b * sn[i];
      x[i + half] = b * c[i] + a * sn[i];
    }
}

// -- attention over a cache

// Rows [first, first + n) of a key/value head's queries, token by token. Returns the first position that any
// of them sees and, in end, one past the last.
size_t CpuBackend::fill_rows(const Queries& q, size_t head, size_t first, size_t n, float* out, float* state,
                             AttendRow* rows, size_t* end) const {
  const KvHead kv = q.sequence->kv(q.layer->index, head);
  size_t begin = SIZE_MAX;
  *end = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t token = (first + i) / q.group, query = head * q.group + (first + i) % q.group;
    const size_t last = q.position + token;
    const size_t low = first_visible(*q.layer->config, last);
    rows[i] = {q.q + token * q.q_stride + query * kv.key_dim,
               out ? out + i * kv.value_dim : q.out + (token * q.kv_heads * q.group + query) * kv.value_dim,
               state + 2 * i, low, last};
    begin = std::min(begin, low);
    *end = std::max(*end, last + 1);
  }
  return begin;
}

void CpuBackend::attend_part(const KvHead& kv, size_t begin, size_t end, const AttendRow* rows, size_t n,
                             float* scratch) const {
  (products_.fast() ? ops_.attend_narrow : ops_.attend)(kv, begin, end, m_.attention.scale, rows, n, scratch);
}

// All parts of these rows one after the other.
void CpuBackend::attend_parts(const Queries& q, size_t head, size_t first, size_t n, size_t worker) {
  const KvHead kv = q.sequence->kv(q.layer->index, head);
  float* part = worker_.get(0) + worker * worker_floats_;
  float* scratch = part + kRows * kv.value_dim;
  float state[2 * kRows], part_state[2 * kRows];
  AttendRow rows[kRows], parts[kRows];
  size_t end = 0;
  const size_t begin = fill_rows(q, head, first, n, nullptr, state, rows, &end);
  fill_rows(q, head, first, n, part, part_state, parts, &end);
  for (size_t p = begin / kPartition; p * kPartition < end; ++p) {
    const bool later = p > begin / kPartition;
    const size_t from = std::max(p * kPartition, begin / kKvBlock * kKvBlock),
                 to = std::min((p + 1) * kPartition, end);
    attend_part(kv, from, to, later ? parts : rows, n, scratch);
    for (size_t r = 0; later && r < n; ++r) ops_.merge_attention(parts[r], rows[r], kv.value_dim);
  }
  for (size_t r = 0; r < n; ++r) {
    const float* sink = q.sinks.empty() ? nullptr : &q.sinks[head * q.group + (first + r) % q.group];
    ops_.finish_attention(rows[r], kv.value_dim, sink);
  }
}

// Few rows and a long context: the parts are computed side by side and merged in order.
void CpuBackend::attend_split(const Queries& q, size_t blocks, size_t parts) {
  const KvHead any = q.sequence->kv(q.layer->index, 0);
  const size_t dim = any.value_dim, total = q.count * q.group, rows_each = std::min(kRows, total),
               slot = rows_each * (dim + 2);
  float* sums = parts_.get(q.kv_heads * blocks * parts * slot);
  const auto work = [&](size_t item, size_t worker) {
    const size_t p = item % parts, block = item / parts % blocks, head = item / parts / blocks;
    const size_t first = block * kRows, n = std::min(kRows, total - first);
    float *out = sums + item * slot, *state = out + rows_each * dim;
    AttendRow rows[kRows];
    size_t end = 0;
    const size_t begin = fill_rows(q, head, first, n, out, state, rows, &end);
    const size_t from = std::max(p * kPartition, begin / kKvBlock * kKvBlock),
                 to = std::min((p + 1) * kPartition, end);
    float* scratch = worker_.get(0) + worker * worker_floats_ + kRows * dim;
    attend_part(q.sequence->kv(q.layer->index, head), from, std::max(from, to), rows, n, scratch);
  };
  pool_.run(q.kv_heads * blocks * parts, work);
  pool_.run(q.kv_heads * blocks, [&](size_t item, size_t) {
    const size_t block = item % blocks, head = item / blocks, first = block * kRows,
                 n = std::min(kRows, total - first);
    AttendRow rows[kRows];
    float state[2 * kRows];
    size_t end = 0;
    fill_rows(q, head, first, n, nullptr, state, rows, &end);
    for (size_t p = 0; p < parts; ++p)
      for (size_t r = 0; r < n; ++r) {
        float *out = sums + (item * parts + p) * slot, *from = out + rows_each * dim + 2 * r;
        const AttendRow part{nullptr, out + r * dim, from, 0, 0};
        if (p == 0) {
          std::copy_n(part.out, dim, rows[r].out);
          std::copy_n(from, 2, rows[r].max_sum);
        } else {
          ops_.merge_attention(part, rows[r], dim);
        }
      }
    for (size_t r = 0; r < n; ++r) {
      const float* sink = q.sinks.empty() ? nullptr : &q.sinks[head * q.group + (first + r) % q.group];
      ops_.finish_attention(rows[r], dim, sink);
    }
  });
}

void CpuBackend::attend(const Queries& q) {
  const size_t total = q.count * q.group, blocks = (total + kRows - 1) / kRows;
  const KvHead kv = q.sequence->kv(q.layer->index, 0);
  worker_floats_ = kRows * kv.value_dim + attend_scratch(kv.key_dim, kv.value_dim, kRows);
  worker_.get(pool_.size() * worker_floats_);
  const size_t parts = (q.position + q.count + kPartition - 1) / kPartition;
  if (parts > 1 && q.kv_heads * blocks < 4 * pool_.size() && pool_.size() > 1)
    return attend_split(q, blocks, parts);
  // The last queries see most: first come, first served.
  pool_.run(q.kv_heads * blocks, [&](size_t i, size_t worker) {
    const size_t block = blocks - 1 - i / q.kv_heads, first = block * kRows;
    attend_parts(q, i % q.kv_heads, first, std::min(kRows, total - first), worker);
  });
}

// -- softmax attention with grouped key/value heads

void CpuBackend::grouped_attention(CpuStep& s, const LayerWeights& layer, const Panel& h) {
  const AttentionWeights& w = layer.attention;
  const AttentionConfig& a = m_.attention;
  const size_t dim = a.head_dim, q_width = a.n_heads * dim, kv_width = a.n_kv_heads * dim;
  const size_t wide = a.gated ? 2 * q_width : q_width;
  float *raw = gate_.get(s.n * wide), *k = k_.get(s.n * kv_width), *v = v_.get(s.n * kv_width);
  float* q = q_.get(s.n * q_width);
  const Product jobs[] = {{w.q.w, w.q.bias, h, nullptr, s.n, raw, wide},
                          {w.k.w, w.k.bias, h, nullptr, s.n, k, kv_width},
                          {w.v.w, w.v.bias, h, nullptr, s.n, v, kv_width}};
  products_.run(jobs);
  fetch_ahead(s, {&w.o.w});

  const auto prepare = [&](size_t t, size_t) {  // norms, clipping, rotation
    float *query = q + t * q_width, *key = k + t * kv_width, *value = v + t * kv_width;
    for (size_t head = 0; head < a.n_heads; ++head)
      std::copy_n(raw + t * wide + head * (wide / a.n_heads), dim, query + head * dim);
    if (a.qk_norm != QkNorm::None) {  // per head or over the whole vector: the weight's length says which
      const size_t q_part = w.q_norm.size(), k_part = w.k_norm.size();
      for (size_t i = 0; i < q_width; i += q_part)
        ops_.rms_norm(query + i, w.q_norm.data(), q_part, m_.norm_eps, query + i);
      for (size_t i = 0; i < kv_width; i += k_part)
        ops_.rms_norm(key + i, w.k_norm.data(), k_part, m_.norm_eps, key + i);
    }
    if (a.clip_qkv > 0) {
      const auto clip = [&](float* x, size_t n) {
        for (size_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], -a.clip_qkv, a.clip_qkv);
      };
      clip(query, q_width), clip(key, kv_width), clip(value, kv_width);
    }
    for (size_t head = 0; head < a.n_heads; ++head) rope(s, t, query + head * dim);
    for (size_t head = 0; head < a.n_kv_heads; ++head) rope(s, t, key + head * dim);
  };
  pool_.run(s.n, prepare);

  const Panel mixed = mixed_.make(s.n, q_width);
  auto* out = const_cast<float*>(mixed.f);
  for (const Slice& slice : s.batch.slices) {
    const Run run = run_of(slice);
    // A window's cache holds what one block of queries can see, so longer runs go block by block.
    for (size_t at = 0, n = 0; at < run.count; at += n) {
      const size_t position = run.position + at, first = run.first + at;
      n = run.count - at;
      if (layer.config->window) n = std::min(n, kKvBlock - position % kKvBlock);
      run.sequence->write_kv(layer.index, position, n);
      const auto store = [&](size_t head, size_t) {
        const KvHead kv = run.sequence->kv(layer.index, head);
        for (size_t t = 0; t < n; ++t) {
          ops_.store_key(kv, position + t, k + (first + t) * kv_width + head * dim);
          ops_.store_value(kv, position + t, v + (first + t) * kv_width + head * dim);
        }
      };
      for (size_t head = 0; n == 1 && head < a.n_kv_heads; ++head) store(head, 0);  // no work for threads
      if (n > 1) pool_.run(a.n_kv_heads, store);
      attend({run.sequence, &layer, a.n_kv_heads, a.n_heads / a.n_kv_heads, n, position, q + first * q_width,
              q_width, out + first * q_width, w.sinks});
      run.sequence->release_kv(layer.index, position + n);
      for (const size_t p : run.sequence->copied_at())
        if (!layer.config->window || p == position + n) run.sequence->copy_kv(layer.index, p);
    }
  }
  pool_.run(s.n, [&](size_t t, size_t) {
    float* o = out + t * q_width;
    for (size_t head = 0; a.gated && head < a.n_heads; ++head)
      ops_.sigmoid_gate(raw + t * wide + head * 2 * dim + dim, dim, o + head * dim);
    if (products_.fast()) ops_.quantise(o, mixed, t);
  });
  float* y = y_.get(s.n * m_.d_model);
  product(w.o, mixed, y);
  fetch_ahead(s, {&layer.router.w});
  add_to_residual(s, y);
}

// -- multi-head latent attention, absorbed: the cache holds the latent and the rotated key only

void CpuBackend::latent_attention(CpuStep& s, const LayerWeights& layer, const Panel& h) {
  const MlaWeights& w = layer.mla;
  const MlaConfig& a = m_.mla;
  const size_t heads = m_.attention.n_heads, q_dim = a.nope_dim + a.rope_dim, width = a.kv_rank + a.rope_dim;
  float *q = gate_.get(s.n * heads * q_dim), *kv = k_.get(s.n * width);
  const Linear kv_a = w.kv_a;
  if (w.q) {
    const Product jobs[] = {{w.q, {}, h, nullptr, s.n, q, heads * q_dim},
                            {kv_a.w, kv_a.bias, h, nullptr, s.n, kv, width}};
    products_.run(jobs);
  } else {
    float* low = v_.get(s.n * a.q_rank);
    const Product jobs[] = {{w.q_a.w, w.q_a.bias, h, nullptr, s.n, low, a.q_rank},
                            {kv_a.w, kv_a.bias, h, nullptr, s.n, kv, width}};
    products_.run(jobs);
    const Panel normed = latent_.make(s.n, a.q_rank);
    norm(low, s.n, w.q_a_norm, kMlaNormEps, normed);
    product(w.q_b, normed, q);
  }

  // The query of each head in the latent's space, then its rotated part.
  const Panel nope = hidden_.make(s.n * heads, a.nope_dim);
  float* absorbed = q_.get(s.n * heads * width);
  pool_.run(s.n, [&](size_t t, size_t) {
    float* row = kv + t * width;
    ops_.rms_norm(row, w.kv_a_norm.data(), a.kv_rank, kMlaNormEps, row);
    rope(s, t, row + a.kv_rank);
    for (size_t head = 0; head < heads; ++head) {
      const size_t at = t * heads + head;
      float* query = q + at * q_dim;
      rope(s, t, query + a.nope_dim);
      std::copy_n(query + a.nope_dim, a.rope_dim, absorbed + at * width + a.kv_rank);
      auto* to = const_cast<float*>(nope.f) + at * a.nope_dim;
      std::copy_n(query, a.nope_dim, to);
      if (w.k_up_t && products_.fast()) ops_.quantise(to, nope, at);
      if (!w.k_up_t) linear_transposed_ref(w.k_up, head * a.nope_dim, a.nope_dim, to, absorbed + at * width);
    }
  });
  picks_.resize(heads * s.n);
  for (size_t head = 0; head < heads; ++head)
    for (size_t t = 0; t < s.n; ++t) picks_[head * s.n + t] = static_cast<uint32_t>(t * heads + head);
  std::vector<Product> jobs;
  for (size_t head = 0; w.k_up_t && head < heads; ++head)
    jobs.push_back({w.k_up_t,
                    {},
                    nope,
                    &picks_[head * s.n],
                    s.n,
                    absorbed + head * width,
                    heads * width,
                    false,
                    head * a.kv_rank,
                    a.kv_rank});
  products_.run(jobs);

  const Panel context = latent_.make(s.n * heads, a.kv_rank);
  for (const Slice& slice : s.batch.slices) {
    const Run run = run_of(slice);
    run.sequence->write_kv(layer.index, run.position, run.count);
    const KvHead cache = run.sequence->kv(layer.index, 0);
    for (size_t t = 0; t < run.count; ++t)
      ops_.store_key(cache, run.position + t, kv + (run.first + t) * width);
    attend({run.sequence,
            &layer,
            1,
            heads,
            run.count,
            run.position,
            absorbed + run.first * heads * width,
            heads * width,
            const_cast<float*>(context.f) + run.first * heads * a.kv_rank,
            {}});
  }
  products_.quantise(context);
  for (const Slice& slice : s.batch.slices)
    for (CpuSequence* sequence = run_of(slice).sequence; const size_t p : sequence->copied_at())
      sequence->copy_kv(layer.index, p);
  const Panel mixed = mixed_.make(s.n, heads * a.value_dim);
  jobs.clear();
  for (size_t head = 0; head < heads; ++head)
    jobs.push_back({w.v_up,
                    {},
                    context,
                    &picks_[head * s.n],
                    s.n,
                    const_cast<float*>(mixed.f) + head * a.value_dim,
                    heads * a.value_dim,
                    false,
                    head * a.value_dim,
                    a.value_dim});
  products_.run(jobs);
  products_.quantise(mixed);
  float* y = y_.get(s.n * m_.d_model);
  product(w.o, mixed, y);
  fetch_ahead(s, {&layer.router.w});
  add_to_residual(s, y);
}

// -- gated delta net

void CpuBackend::delta_net(CpuStep& s, const LayerWeights& layer, const Panel& h) {
  const DeltaWeights& w = layer.delta;
  const DeltaConfig& d = m_.delta;
  const size_t channels = d.conv_channels(), values = d.value_channels(), heads = d.n_value_heads;
  float *u = gate_.get(s.n * channels), *z = q_.get(s.n * values), *b = k_.get(s.n * heads),
        *a = v_.get(s.n * heads);
  // Noise in q and k is amplified by the recurrence and the norm after it, so their products are fine. b and
  // a steer the state's decay and are few: they stay in float.
  const size_t qk = 2 * d.key_channels();
  if (products_.fast())
    pool_.run(s.n, [&](size_t t, size_t) {
      auto* rest = const_cast<float*>(h.f) + (s.n + t) * h.stride;
      ops_.remainder(h.f + t * h.stride, h, t, rest);
      ops_.quantise(rest, h, s.n + t);
    });
  // What takes long per row comes first, so that threads end together.
  const Product jobs[] = {{w.b, {}, h, nullptr, s.n, b, heads, true},
                          {w.a, {}, h, nullptr, s.n, a, heads, true},
                          {w.qkv, {}, h, nullptr, s.n, u, channels, false, 0, qk, true},
                          {w.qkv, {}, h, nullptr, s.n, u + qk, channels, false, qk, values},
                          {w.z, {}, h, nullptr, s.n, z, values}};
  products_.run(jobs);
  fetch_ahead(s, {&w.out});

  const Panel mixed = mixed_.make(s.n, values);
  const size_t group = heads / d.n_key_heads, lane = 2 * d.key_dim + group * d.value_dim;
  worker_floats_ = kDeltaBlock * (lane + 2) + delta_scratch(d.value_dim);
  worker_.get(pool_.size() * worker_floats_);
  for (const Slice& slice : s.batch.slices) run_of(slice).sequence->write_delta(slice.count);
  const size_t n_items = s.batch.slices.size() * d.n_key_heads;
  pool_.run(n_items, [&](size_t item, size_t worker) {
    const Run run = run_of(s.batch.slices[item / d.n_key_heads]);
    delta_head(run, layer, item % d.n_key_heads, worker, u, z, b, a, const_cast<float*>(mixed.f));
  });
  products_.quantise(mixed);
  float* y = y_.get(s.n * m_.d_model);
  product({w.out, {}}, mixed, y);
  fetch_ahead(s, {&layer.router.w});
  add_to_residual(s, y);
}

namespace {

// Channels of the convolution that belong to a key head: its q, k and v.
struct ConvPart {
  size_t channel, dim;
};
std::array<ConvPart, 3> conv_parts(const DeltaConfig& d, size_t key_head) {
  const size_t group = d.n_value_heads / d.n_key_heads;
  return {{{key_head * d.key_dim, d.key_dim},
           {d.key_channels() + key_head * d.key_dim, d.key_dim},
           {2 * d.key_channels() + key_head * group * d.value_dim, group * d.value_dim}}};
}

}  // namespace

// The head's part of a copy inside the step: its state, of a block that has just ended, and the convolution's
// inputs.
void CpuBackend::copy_delta_head(const Run& run, const LayerWeights& layer, size_t key_head, const float* u,
                                 size_t position) const {
  const DeltaConfig& d = m_.delta;
  CpuSequence& copy = run.sequence->inside_copy(position);
  const size_t group = d.n_value_heads / d.n_key_heads;
  for (size_t head = key_head * group; head < (key_head + 1) * group; ++head)
    std::copy_n(run.sequence->delta(layer.index, head).state, d.key_dim * d.value_dim,
                copy.delta(layer.index, head).state);
  for (size_t p = position - std::min(position, copy.conv_rows()); p < position; ++p) {
    const float* from = p >= run.position ? u + (run.first + p - run.position) * d.conv_channels()
                                          : run.sequence->conv(layer.index, p);
    for (const ConvPart& part : conv_parts(d, key_head))
      std::copy_n(from + part.channel, part.dim, copy.conv(layer.index, p) + part.channel);
  }
}

// One key head with its value heads: convolution, delta rule, norm and gate, block by block of positions.
void CpuBackend::delta_head(const Run& run, const LayerWeights& layer, size_t key_head, size_t worker,
                            const float* u, const float* z, const float* b, const float* a, float* out) {
  const DeltaWeights& w = layer.delta;
  const DeltaConfig& d = m_.delta;
  const size_t channels = d.conv_channels(), values = d.value_channels(), heads = d.n_value_heads;
  const size_t group = heads / d.n_key_heads, past = d.conv_width - 1;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d.key_dim));
  const std::vector<float>& taps = conv_taps_[layer.index];
  // Where the convolution's input of position run.position + i - past is.
  const size_t kept = run.sequence->conv_rows();
  const auto input = [&](size_t i) {
    return i >= past ? u + (run.first + i - past) * channels
                     : run.sequence->conv(layer.index, run.position + kept + i - past);
  };
  const std::array<ConvPart, 3> parts = conv_parts(d, key_head);
  float* q = worker_.get(0) + worker * worker_floats_;  // [kDeltaBlock, dim] each
  float *k = q + kDeltaBlock * d.key_dim, *v = k + kDeltaBlock * d.key_dim,
        *beta = v + kDeltaBlock * group * d.value_dim, *g = beta + kDeltaBlock, *scratch = g + kDeltaBlock;
  float* const mine[] = {q, k, v};

  for (size_t at = 0; at < run.count;) {
    const size_t index = (run.position + at) % kDeltaBlock, n = std::min(run.count - at, kDeltaBlock - index);
    for (size_t t = 0; t < n; ++t)
      for (size_t p = 0; p < 3; ++p) {
        const float* rows[kMostTaps];
        for (size_t j = 0; j <= past; ++j) rows[j] = input(at + t + j) + parts[p].channel;
        ops_.conv_silu(rows, taps.data() + parts[p].channel, channels, d.conv_width, parts[p].dim,
                       mine[p] + t * parts[p].dim);
      }
    for (size_t t = 0; t < n; ++t) {
      ops_.scale_to_length(q + t * d.key_dim, d.key_dim, kUnitEps, scale);
      ops_.scale_to_length(k + t * d.key_dim, d.key_dim, kUnitEps, 1.0f);
    }
    for (size_t i = 0; i < group; ++i) {
      const size_t head = key_head * group + i;
      for (size_t t = 0; t < n; ++t) {
        const size_t row = (run.first + at + t) * heads + head;
        beta[t] = sigmoid(b[row]);
        g[t] = -std::exp(w.a_log[head]) * softplus(a[row] + w.dt_bias[head]);
      }
      float* o = out + (run.first + at) * values + head * d.value_dim;
      ops_.delta_block(run.sequence->delta(layer.index, head), index, n,
                       {q, k, v + i * d.value_dim, d.key_dim, group * d.value_dim, beta, g, o, values},
                       scratch);
      for (size_t t = 0; t < n; ++t, o += values) {
        ops_.rms_norm(o, w.norm.data(), d.value_dim, m_.norm_eps, o);
        ops_.silu_gate(z + (run.first + at + t) * values + head * d.value_dim, d.value_dim, o);
      }
    }
    at += n;
    if (std::ranges::binary_search(run.sequence->copied_at(), run.position + at))
      copy_delta_head(run, layer, key_head, u, run.position + at);
  }
  for (size_t t = run.count - std::min(run.count, kept); t < run.count; ++t) {
    float* row = run.sequence->conv(layer.index, run.position + t);
    for (const ConvPart& p : parts) std::copy_n(input(t + past) + p.channel, p.dim, row + p.channel);
  }
}

}  // namespace moeflux
