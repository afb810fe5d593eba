#include "cpu/reference_backend.h"

#include <algorithm>
#include <map>

#include "base/checked.h"
#include "base/numbers.h"
#include "ops/delta.h"
#include "ops/linear.h"
#include "ops/pointwise.h"
#include "ops/router.h"

namespace moeflux {
namespace {

using Floats = std::vector<float>;

// Rows of a KV cache; a sliding window keeps its last rows only. Fast precision keeps bf16.
class KvRows {
 public:
  KvRows(size_t rows, size_t width, bool bf16)
      : rows_(rows), width_(width), bf16_(bf16), data_(rows * width * (bf16 ? 2 : 4)) {}
  KvRows(const KvRows& o) : KvRows(o.rows_, o.width_, o.bf16_) {
    std::ranges::copy(o.data_.bytes(), data_.data());
  }

  void store(size_t position, const float* values) {
    const size_t at = position % rows_ * width_;
    if (bf16_)
      for (size_t i = 0; i < width_; ++i) half()[at + i] = float_to_bf16(values[i]);
    else
      std::copy_n(values, width_, data_.floats().data() + at);
  }
  void load(size_t position, float* out) const {
    const size_t at = position % rows_ * width_;
    if (bf16_)
      for (size_t i = 0; i < width_; ++i) out[i] = bf16_to_float(half()[at + i]);
    else
      std::copy_n(data_.floats().data() + at, width_, out);
  }
  size_t rows() const { return rows_; }
  size_t width() const { return width_; }
  MemoryPart memory() const { return {data_.data(), data_.size()}; }
  // Values [begin, begin + n) of a position's row, as they are kept.
  std::span<std::byte> part(size_t position, size_t begin, size_t n) const {
    const size_t each = bf16_ ? 2 : 4;
    return data_.bytes().subspan((position % rows_ * width_ + begin) * each, n * each);
  }

 private:
  uint16_t* half() const { return reinterpret_cast<uint16_t*>(data_.data()); }
  size_t rows_, width_;
  bool bf16_;
  AlignedBuffer data_;
};

struct DeltaState {
  explicit DeltaState(const DeltaConfig& d)
      : conv((d.conv_width - 1) * d.conv_channels()),
        state(d.n_value_heads * d.key_dim * d.value_dim),
        keys(d.n_value_heads * kDeltaBlock * d.key_dim),
        values(d.n_value_heads * kDeltaBlock * d.value_dim),
        decay(d.n_value_heads * kDeltaBlock) {}

  DeltaHead head(const DeltaConfig& d, size_t h) {
    return {d.key_dim,
            d.value_dim,
            &state[h * d.key_dim * d.value_dim],
            &keys[h * kDeltaBlock * d.key_dim],
            &values[h * kDeltaBlock * d.value_dim],
            &decay[h * kDeltaBlock]};
  }
  uint64_t bytes() const {
    return sizeof(float) * (conv.size() + state.size() + keys.size() + values.size() + decay.size());
  }
  Floats conv;  // [conv_width - 1, channels]: the last raw inputs, oldest first
  Floats state, keys, values, decay;
};

// All of its memory from the start, and copies that share nothing.
class ReferenceSequence : public Sequence {
 public:
  ReferenceSequence(const ModelConfig& model, size_t capacity, bool bf16)
      : Sequence(capacity), model_(model), kv_type_(bf16 ? KvType::Bf16 : KvType::F32) {
    for (const LayerConfig& layer : model.layers) {
      if (layer.mixer == Mixer::DeltaNet) delta_.emplace(kv_.size(), model.delta);
      kv_.emplace_back(layer.mixer == Mixer::DeltaNet ? 0 : kv_rows(layer, capacity), kv_width(model, layer),
                       bf16);
    }
  }
  std::vector<MemoryPart> memory() const override {
    std::vector<MemoryPart> parts;
    for (const KvRows& kv : kv_) parts.push_back(kv.memory());
    for (const auto& [layer, state] : delta_) parts.push_back({&state, state.bytes()});
    return parts;
  }
  std::unique_ptr<Sequence> copy() const override {
    return std::unique_ptr<Sequence>(new ReferenceSequence(*this));
  }
  uint64_t state_bytes(Saved what) const override {
    return saved_bytes(model_, position(), kv_type_, position() % kDeltaBlock, what);
  }
  KvRows& kv(uint64_t layer) { return kv_[layer]; }
  DeltaState& delta(uint64_t layer) { return delta_.at(layer); }

 private:
  ReferenceSequence(const ReferenceSequence&) = default;

  // Calls fn(bytes) for every part of a saved state at `position`, in order.
  template <class Fn>
  void for_each_part(size_t position, Saved what, Fn fn) {
    for (size_t i = 0; i < kv_.size(); ++i) {
      const LayerConfig& layer = model_.layers[i];
      if (!is_saved(layer, what)) continue;
      if (layer.mixer == Mixer::DeltaNet) {
        for_each_part_of(delta_.at(i), position, fn);
        continue;
      }
      const KvShape s = kv_shape(model_, layer);
      const size_t first = first_visible(layer, position), values = s.heads * s.key_dim;
      for (size_t h = 0; h < s.heads; ++h) {
        for (size_t p = first; p < position; ++p) fn(kv_[i].part(p, h * s.key_dim, s.key_dim));
        for (size_t p = first; s.own_values && p < position; ++p)
          fn(kv_[i].part(p, values + h * s.value_dim, s.value_dim));
      }
    }
  }

  template <class Fn>
  void for_each_part_of(DeltaState& state, size_t position, Fn fn) {
    const auto floats = [&](float* x, size_t n) { fn(std::as_writable_bytes(std::span(x, n))); };
    const auto n = static_cast<uint32_t>(position % kDeltaBlock);
    uint32_t block = n;
    fn(std::as_writable_bytes(std::span(&block, 1)));
    if (block != n && block != 0)
      fail(Errc::Corrupt, "a state at position {} with {} tokens of a block", position, block);
    floats(state.conv.data(), state.conv.size());
    for (size_t h = 0; h < model_.delta.n_value_heads; ++h) {
      const DeltaHead head = state.head(model_.delta, h);
      floats(head.state, head.key_dim * head.value_dim);
      if (block == 0) clear_block(head);
      for (size_t t = 0; t < block; ++t)
        for (size_t i = 0; i < head.key_dim; ++i) floats(head.keys + i * kDeltaBlock + t, 1);
      floats(head.values, block * head.value_dim);
      floats(head.decay, block);
    }
  }
  // Tokens without effect, for a state that has its block's in itself.
  static void clear_block(const DeltaHead& head) {
    std::fill_n(head.keys, kDeltaBlock * head.key_dim, 0.0f);
    std::fill_n(head.values, kDeltaBlock * head.value_dim, 0.0f);
    std::fill_n(head.decay, kDeltaBlock, 0.0f);
  }

  void save_state(StateSink& sink, Saved what) const override {
    ReferenceSequence same(*this);  // its parts are handed out for writing too
    same.for_each_part(position(), what, [&](std::span<const std::byte> bytes) { sink.write(bytes); });
  }
  void load_state(StateSource& source, size_t position, Saved what) override {
    for_each_part(position, what, [&](std::span<std::byte> bytes) { source.read(bytes); });
    loaded_at_ = position;
  }

  // Delta nets keep the inputs that their convolution needs next, and no earlier ones.
  size_t removable() const override {
    size_t most = delta_.empty() ? SIZE_MAX : 0;
    for (size_t i = 0; i < kv_.size(); ++i)
      if (model_.layers[i].mixer != Mixer::DeltaNet)
        most = std::min(most, ring_removable(model_.layers[i], kv_[i].rows(), position()));
    return most;
  }
  bool can_cut_state(size_t position) const override {
    if (!delta_.empty() || position < loaded_at_) return false;
    for (size_t i = 0; i < kv_.size(); ++i)
      if (!ring_can_cut(model_.layers[i], kv_[i].rows(), furthest(), position)) return false;
    return true;
  }

  const ModelConfig& model_;
  const KvType kv_type_;
  size_t loaded_at_ = 0;  // a saved state holds only what later tokens need
  std::vector<KvRows> kv_;
  std::map<uint64_t, DeltaState> delta_;
};

struct ReferenceStep : Step {
  ReferenceStep(const Batch& b, const Tap& t, size_t d_model)
      : batch(b), tap(t), n(b.tokens.size()), x(n * d_model), h(n * d_model) {}

  Batch batch;
  const Tap& tap;
  size_t n;                   // tokens
  Floats x, h;                // [n, d_model]: residual stream, normed input of the feed-forward part
  std::vector<uint32_t> ids;  // [n, top_k]
  Floats weights;             // [n, top_k]
};

class ReferenceBackend : public Backend {
 public:
  ReferenceBackend(const ModelConfig& model, const ModelWeights& weights, Precision precision)
      : m_(model), mtp_(mtp_config(model)), w_(weights), fast_(precision == Precision::Fast) {}

  std::string_view name() const override { return "cpu-ref"; }

  std::unique_ptr<Sequence> make_sequence(size_t capacity) override {
    return std::make_unique<ReferenceSequence>(m_, capacity, fast_);
  }

  std::unique_ptr<Sequence> make_mtp_sequence(size_t capacity) override {
    return w_.mtp ? std::make_unique<ReferenceSequence>(mtp_, capacity, fast_) : nullptr;
  }

  std::unique_ptr<Step> begin(const Batch& batch, const Tap& tap) override {
    return std::make_unique<ReferenceStep>(batch, tap, m_.d_model);
  }

  void embed(Step& step) override {
    auto& s = static_cast<ReferenceStep&>(step);
    for (size_t t = 0; t < s.n; ++t) dequantise_row(w_.embedding, s.batch.tokens[t], &s.x[t * m_.d_model]);
    tap(s, "embed", 0, s.x, m_.d_model);
  }

  void join_hidden(Step& step) override {
    auto& s = static_cast<ReferenceStep&>(step);
    const size_t d = m_.d_model;
    Floats both(s.n * 2 * d);
    for (size_t t = 0; t < s.n; ++t) {
      float* to = &both[t * 2 * d];
      rms_norm_ref({&s.x[t * d], d}, w_.mtp->embedding_norm, m_.norm_eps, to);
      rms_norm_ref(s.batch.hidden.subspan(t * d, d), w_.mtp->hidden_norm, m_.norm_eps, to + d);
    }
    s.x = linear(w_.mtp->fc, both);
  }

  void attention(Step& step, const LayerWeights& layer) override {
    auto& s = static_cast<ReferenceStep&>(step);
    const Floats h = norm_rows(s.x, layer.attn_norm, m_.norm_eps);
    Floats mixed;
    switch (layer.config->mixer) {
      case Mixer::Attention:
        mixed = grouped_attention(s, layer, h);
        break;
      case Mixer::Mla:
        mixed = latent_attention(s, layer, h);
        break;
      case Mixer::DeltaNet:
        mixed = delta_net(s, layer, h);
        break;
    }
    add(s.x, mixed);
    tap(s, "attention", layer.index, s.x, m_.d_model);
  }

  void route(Step& step, const LayerWeights& layer) override {
    auto& s = static_cast<ReferenceStep&>(step);
    const MoeConfig& moe = m_.moe;
    s.h = norm_rows(s.x, layer.mlp_norm, m_.norm_eps);
    Floats logits = linear_exact(layer.router, s.h);  // routers stay in float in every precision
    tap(s, "router_logits", layer.index, logits, moe.n_experts);
    const RouterRule rule = router_rule(moe, layer.score_bias);
    s.ids.resize(s.n * moe.top_k);
    s.weights.resize(s.n * moe.top_k);
    for (size_t t = 0; t < s.n; ++t)
      route_ref(rule, {&logits[t * moe.n_experts], moe.n_experts}, &s.ids[t * moe.top_k],
                &s.weights[t * moe.top_k]);
    if (s.tap.wants("topk_ids")) {
      Floats ids(s.ids.begin(), s.ids.end());
      if (tap(s, "topk_ids", layer.index, ids, moe.top_k)) s.ids.assign(ids.begin(), ids.end());
      tap(s, "topk_weights", layer.index, s.weights, moe.top_k);
    }
  }

  void begin_experts(Step&, const LayerWeights&, ExpertStore&) override {}

  std::span<const uint32_t> chosen(const Step& step) const override {
    return static_cast<const ReferenceStep&>(step).ids;
  }

  std::span<const uint32_t> guess(Step&, const LayerWeights&) override { return {}; }

  void complete_experts(Step& step, const LayerWeights& layer, ExpertStore& store) override {
    auto& s = static_cast<ReferenceStep&>(step);
    const size_t d = m_.d_model, k = m_.moe.top_k;
    std::map<uint32_t, std::vector<size_t>> picks;  // expert -> indices into [n, k]
    for (size_t i = 0; i < s.ids.size(); ++i) picks[s.ids[i]].push_back(i);
    Floats each(s.n * k * d);  // every pick's result, so that the sum below is in routing order
    for (const auto& [expert, indices] : picks) {
      const ExpertStore::Lease lease = store.lease({layer.store_layer, expert});
      const MlpWeights weights = bind_expert(store.layer(layer.store_layer), lease.bytes());
      Floats in(indices.size() * d);
      for (size_t i = 0; i < indices.size(); ++i) std::copy_n(&s.h[indices[i] / k * d], d, &in[i * d]);
      const Floats out = feed_forward(weights, in, m_.moe.activation);
      for (size_t i = 0; i < indices.size(); ++i) std::copy_n(&out[i * d], d, &each[indices[i] * d]);
    }
    Floats sum(s.n * d);
    for (size_t t = 0; t < s.n; ++t)
      for (size_t j = 0; j < k; ++j)
        for (size_t i = 0; i < d; ++i)
          sum[t * d + i] = std::fma(s.weights[t * k + j], each[(t * k + j) * d + i], sum[t * d + i]);
    if (m_.moe.shared_width) add_shared(s, layer, sum);
    add(s.x, sum);
    tap(s, "mlp", layer.index, s.x, d);
  }

  void mlp(Step& step, const LayerWeights& layer) override {
    auto& s = static_cast<ReferenceStep&>(step);
    s.h = norm_rows(s.x, layer.mlp_norm, m_.norm_eps);
    add(s.x, feed_forward(layer.dense, s.h, Activation::Swiglu));
    tap(s, "mlp", layer.index, s.x, m_.d_model);
  }

  void logits(Step& step, std::span<float> out) override {
    auto& s = static_cast<ReferenceStep&>(step);
    Floats h = norm_rows(s.x, s.batch.mtp() ? w_.mtp->norm : w_.final_norm, m_.norm_eps);
    tap(s, "final_norm", m_.n_layers(), h, m_.d_model);
    if (!s.batch.final_norm.empty()) std::ranges::copy(h, s.batch.final_norm.begin());
    const std::span<Shortlist> lists = s.batch.shortlists;
    if (!lists.empty()) {
      kept_logits_.resize(lists.size() * m_.n_vocab);
      out = kept_logits_;
    }
    for (size_t i = 0; i < s.batch.logit_rows.size(); ++i)
      linear_rows(w_.head, 0, m_.n_vocab, &h[s.batch.logit_rows[i] * m_.d_model], 1, m_.d_model,
                  &out[i * m_.n_vocab], m_.n_vocab);
    for (size_t i = 0; i < lists.size(); ++i)
      shortlist_ref(out.subspan(i * m_.n_vocab, m_.n_vocab), s.batch.wishes[i], lists[i]);
    if (s.tap) s.tap.call({"logits", m_.n_layers(), s.batch.logit_rows.size(), m_.n_vocab, out});
  }
  bool keeps_logits() const override { return true; }
  void read_logits(size_t row, std::span<float> out) override {
    std::copy_n(&kept_logits_[row * m_.n_vocab], out.size(), out.begin());
  }

 private:
  // -- small things

  bool tap(ReferenceStep& s, std::string_view name, uint64_t layer, Floats& values, size_t cols) const {
    return s.tap.wants(name) && s.tap.call({name, layer, values.size() / cols, cols, values});
  }

  static void add(Floats& x, const Floats& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  static Floats norm_rows(const Floats& x, Vector w, float eps) {
    Floats out(x.size());
    for (size_t at = 0; at < x.size(); at += w.size()) rms_norm_ref({&x[at], w.size()}, w, eps, &out[at]);
    return out;
  }

  void linear_rows(const MatrixView& w, size_t first, size_t count, const float* x, size_t n, size_t x_stride,
                   float* out, size_t out_stride) const {
    (fast_ ? linear_fast_ref : linear_exact_ref)(w, first, count, x, n, x_stride, out, out_stride);
  }

  static void add_bias(Floats& y, Vector bias) {
    for (size_t i = 0; !bias.empty() && i < y.size(); ++i) y[i] += bias[i % bias.size()];
  }

  Floats linear(const Linear& l, const Floats& x) const {
    const size_t n = x.size() / l.w.cols;
    Floats y(n * l.w.rows);
    linear_rows(l.w, 0, l.w.rows, x.data(), n, l.w.cols, y.data(), l.w.rows);
    add_bias(y, l.bias);
    return y;
  }
  Floats linear(const MatrixView& w, const Floats& x) const { return linear(Linear{w, {}}, x); }

  // Makes the first `rows` rows of y = w x fine.
  static void add_remainder(const MatrixView& w, const Floats& x, size_t rows, Floats& y) {
    Floats rest(w.cols), more(rows);
    for (size_t t = 0; t < x.size() / w.cols; ++t) {
      remainder_ref({&x[t * w.cols], w.cols}, rest.data());
      linear_fast_ref(w, 0, rows, rest.data(), 1, w.cols, more.data(), rows);
      for (size_t i = 0; i < rows; ++i) y[t * w.rows + i] += more[i];
    }
  }

  static Floats linear_exact(const Linear& l, const Floats& x) {
    const size_t n = x.size() / l.w.cols;
    Floats y(n * l.w.rows);
    linear_exact_ref(l.w, 0, l.w.rows, x.data(), n, l.w.cols, y.data(), l.w.rows);
    add_bias(y, l.bias);
    return y;
  }

  Floats feed_forward(const MlpWeights& w, const Floats& x, Activation activation) const {
    Floats gate = linear(w.gate, x);
    const Floats up = linear(w.up, x);
    if (activation == Activation::Swiglu)
      swiglu_ref(gate.data(), up.data(), gate.size(), gate.data());
    else
      clamped_swiglu_ref(gate.data(), up.data(), gate.size(), m_.moe.clamp, gate.data());
    return linear(w.down, gate);
  }

  void add_shared(const ReferenceStep& s, const LayerWeights& layer, Floats& sum) const {
    const Floats out = feed_forward(layer.shared, s.h, Activation::Swiglu);
    const Floats gate = m_.moe.shared_gated ? linear_exact({layer.shared_gate, {}}, s.h) : Floats{};
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] = std::fma(gate.empty() ? 1.0f : sigmoid(gate[i / m_.d_model]), out[i], sum[i]);
  }

  void rope(float* x, size_t position) const {
    rope_ref(x, m_.rope.inv_freq, m_.rope.scale, m_.rope.interleaved, position);
  }

  // Calls fn(sequence, token index in the batch, position) for every token in order.
  template <class Fn>
  static void for_each_token(const ReferenceStep& s, Fn fn) {
    for (const Slice& slice : s.batch.slices)
      for (size_t i = 0; i < slice.count; ++i)
        fn(static_cast<ReferenceSequence&>(*slice.sequence), slice.first + i, slice.sequence->position() + i);
  }

  // -- softmax attention with grouped key/value heads

  Floats grouped_attention(ReferenceStep& s, const LayerWeights& layer, const Floats& h) const {
    const AttentionWeights& w = layer.attention;
    const AttentionConfig& a = m_.attention;
    const size_t dim = a.head_dim, q_width = a.n_heads * dim, kv_width = a.n_kv_heads * dim;
    Floats q = linear(w.q, h), k = linear(w.k, h), v = linear(w.v, h), gate;
    if (a.gated) split_gates(q, gate, dim);
    if (a.qk_norm != QkNorm::None) {  // per head or over the whole vector: the weight's length says which
      q = norm_rows(q, w.q_norm, m_.norm_eps);
      k = norm_rows(k, w.k_norm, m_.norm_eps);
    }
    if (a.clip_qkv > 0)
      for (Floats* f : {&q, &k, &v})
        for (float& x : *f) x = std::clamp(x, -a.clip_qkv, a.clip_qkv);

    Floats out(s.n * q_width), row(2 * kv_width);
    for_each_token(s, [&](ReferenceSequence& sequence, size_t t, size_t position) {
      for (size_t head = 0; head < a.n_heads; ++head) rope(&q[t * q_width + head * dim], position);
      for (size_t head = 0; head < a.n_kv_heads; ++head) rope(&k[t * kv_width + head * dim], position);
      std::copy_n(&k[t * kv_width], kv_width, row.data());
      std::copy_n(&v[t * kv_width], kv_width, row.data() + kv_width);
      KvRows& kv = sequence.kv(layer.index);
      kv.store(position, row.data());
      attend(kv, layer, position, &q[t * q_width], &out[t * q_width]);
    });
    for (size_t i = 0; i < gate.size(); ++i) out[i] *= sigmoid(gate[i]);
    return linear(w.o, out);
  }

  // [n, heads, 2 * dim] (query, gate) -> two of [n, heads, dim].
  static void split_gates(Floats& q, Floats& gate, size_t dim) {
    Floats query(q.size() / 2);
    gate.resize(q.size() / 2);
    for (size_t i = 0; i < query.size(); ++i) {
      query[i] = q[i / dim * 2 * dim + i % dim];
      gate[i] = q[i / dim * 2 * dim + dim + i % dim];
    }
    q = std::move(query);
  }

  void attend(const KvRows& kv, const LayerWeights& layer, size_t position, const float* q,
              float* out) const {
    const AttentionConfig& a = m_.attention;
    const size_t dim = a.head_dim, window = layer.config->window;
    const size_t first = window && position + 1 > window ? position + 1 - window : 0,
                 n = position + 1 - first;
    Floats row(kv.width()), scores(a.n_heads * n);
    for (size_t i = 0; i < n; ++i) {
      kv.load(first + i, row.data());
      for (size_t head = 0; head < a.n_heads; ++head)
        scores[head * n + i] = dot(q + head * dim, &row[kv_head(head) * dim], dim) * a.scale;
    }
    for (size_t head = 0; head < a.n_heads; ++head)
      if (a.sinks)
        softmax_ref(&scores[head * n], n, layer.attention.sinks[head]);
      else
        softmax_ref(&scores[head * n], n);
    for (size_t i = 0; i < n; ++i) {
      kv.load(first + i, row.data());
      for (size_t head = 0; head < a.n_heads; ++head) {
        const float* v = &row[(a.n_kv_heads + kv_head(head)) * dim];
        for (size_t c = 0; c < dim; ++c) out[head * dim + c] += scores[head * n + i] * v[c];
      }
    }
  }
  size_t kv_head(size_t head) const { return head / (m_.attention.n_heads / m_.attention.n_kv_heads); }

  // -- multi-head latent attention, absorbed: the cache holds the latent and the rotated key only

  Floats latent_attention(ReferenceStep& s, const LayerWeights& layer, const Floats& h) const {
    const MlaWeights& w = layer.mla;
    const MlaConfig& a = m_.mla;
    const size_t heads = m_.attention.n_heads, q_dim = a.nope_dim + a.rope_dim;
    Floats q = w.q ? linear(w.q, h) : linear(w.q_b, norm_rows(linear(w.q_a, h), w.q_a_norm, kMlaNormEps));
    Floats kv = linear(w.kv_a, h);
    const size_t width = a.kv_rank + a.rope_dim;

    Floats out(s.n * heads * a.value_dim);
    for_each_token(s, [&](ReferenceSequence& sequence, size_t t, size_t position) {
      float* row = &kv[t * width];
      rms_norm_ref({row, a.kv_rank}, w.kv_a_norm, kMlaNormEps, row);
      rope(row + a.kv_rank, position);
      sequence.kv(layer.index).store(position, row);
      for (size_t head = 0; head < heads; ++head) {
        float* query = &q[(t * heads + head) * q_dim];
        rope(query + a.nope_dim, position);
        attend_latent(sequence.kv(layer.index), w, head, position, query,
                      &out[(t * heads + head) * a.value_dim]);
      }
    });
    return linear(w.o, out);
  }

  void attend_latent(const KvRows& kv, const MlaWeights& w, size_t head, size_t position, const float* query,
                     float* out) const {
    const MlaConfig& a = m_.mla;
    const size_t n = position + 1;
    Floats absorbed(a.kv_rank + a.rope_dim), row(kv.width()), scores(n), context(a.kv_rank);
    if (w.k_up_t)
      linear_rows(w.k_up_t, head * a.kv_rank, a.kv_rank, query, 1, a.nope_dim, absorbed.data(), a.kv_rank);
    else
      linear_transposed_ref(w.k_up, head * a.nope_dim, a.nope_dim, query, absorbed.data());
    std::copy_n(query + a.nope_dim, a.rope_dim, &absorbed[a.kv_rank]);
    for (size_t i = 0; i < n; ++i) {
      kv.load(i, row.data());
      scores[i] = dot(absorbed.data(), row.data(), row.size()) * m_.attention.scale;
    }
    softmax_ref(scores.data(), n);
    for (size_t i = 0; i < n; ++i) {
      kv.load(i, row.data());
      for (size_t c = 0; c < a.kv_rank; ++c) context[c] += scores[i] * row[c];
    }
    linear_rows(w.v_up, head * a.value_dim, a.value_dim, context.data(), 1, a.kv_rank, out, a.value_dim);
  }

  // -- gated delta net

  Floats delta_net(ReferenceStep& s, const LayerWeights& layer, const Floats& h) const {
    const DeltaWeights& w = layer.delta;
    const DeltaConfig& d = m_.delta;
    // Noise in q and k is amplified by the recurrence and the norm after it, so their products are fine. b
    // and a steer the state's decay and are few: they stay in float in every precision.
    Floats u = linear(w.qkv, h);
    if (fast_ && has_integer_codes(w.qkv.format)) add_remainder(w.qkv, h, 2 * d.key_channels(), u);
    const Floats z = linear(w.z, h), b = linear_exact({w.b, {}}, h), a = linear_exact({w.a, {}}, h);
    const size_t channels = d.conv_channels(), values = d.value_channels();

    Floats out(s.n * values), y(channels);
    for_each_token(s, [&](ReferenceSequence& sequence, size_t t, size_t position) {
      DeltaState& state = sequence.delta(layer.index);
      convolve(w.conv, state.conv, &u[t * channels], y.data());
      for (size_t head = 0; head < d.n_key_heads; ++head) {
        to_unit_length(&y[head * d.key_dim], d.key_dim);
        to_unit_length(&y[d.key_channels() + head * d.key_dim], d.key_dim);
      }
      const float scale = 1.0f / std::sqrt(static_cast<float>(d.key_dim));
      for (size_t i = 0; i < d.key_channels(); ++i) y[i] *= scale;
      for (size_t head = 0; head < d.n_value_heads; ++head) {
        const size_t key_head = head / (d.n_value_heads / d.n_key_heads), i = t * d.n_value_heads + head;
        const float g = -std::exp(w.a_log[head]) * softplus(a[i] + w.dt_bias[head]);
        float* o = &out[i * d.value_dim];
        delta_step_ref(state.head(d, head), position % kDeltaBlock, &y[key_head * d.key_dim],
                       &y[d.key_channels() + key_head * d.key_dim],
                       &y[2 * d.key_channels() + head * d.value_dim], sigmoid(b[i]), g, o);
        rms_norm_ref({o, d.value_dim}, w.norm, m_.norm_eps, o);
        for (size_t c = 0; c < d.value_dim; ++c) o[c] *= silu(z[i * d.value_dim + c]);
      }
    });
    return linear(w.out, out);
  }

  // Causal depthwise convolution and SiLU; the last tap meets the current input.
  void convolve(Vector taps, Floats& past, const float* u, float* y) const {
    const size_t channels = m_.delta.conv_channels(), width = m_.delta.conv_width;
    for (size_t c = 0; c < channels; ++c) {
      float sum = 0;
      for (size_t j = 0; j + 1 < width; ++j) sum += taps[c * width + j] * past[j * channels + c];
      y[c] = silu(sum + taps[c * width + width - 1] * u[c]);
    }
    if (width > 1) {
      std::copy(past.begin() + static_cast<ptrdiff_t>(channels), past.end(), past.begin());
      std::copy_n(u, channels, past.end() - static_cast<ptrdiff_t>(channels));
    }
  }

  static void to_unit_length(float* x, size_t n) {
    const float inverse = 1.0f / std::sqrt(dot(x, x, n) + kUnitEps);
    for (size_t i = 0; i < n; ++i) x[i] *= inverse;
  }

  const ModelConfig& m_;
  const ModelConfig mtp_;
  const ModelWeights& w_;
  const bool fast_;
  Floats kept_logits_;  // of the last step that wished for shortlists
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(const ModelConfig& model, const ModelWeights& weights,
                                                Precision precision) {
  return std::make_unique<ReferenceBackend>(model, weights, precision);
}

}  // namespace moeflux
