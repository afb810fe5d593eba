#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "cpu/cpu_stages.h"
#include "ops/pointwise.h"
#include "ops/router.h"

namespace moeflux {
namespace {

CpuStep& own(Step& step) { return static_cast<CpuStep&>(step); }

constexpr size_t kSweepLeases = 8;

}  // namespace

CpuBackend::CpuBackend(const ModelConfig& model, const ModelWeights& weights, const CpuOptions& options)
    : m_(model),
      mtp_(mtp_config(model)),
      w_(weights),
      ops_(*options.ops),
      kv_(options.kv),
      pages_(std::make_shared<KvPagePool>(CpuSequence::page_bytes(mtp_, options.kv))),
      pool_(options.threads),
      products_(ops_, pool_, options.precision),
      feed_forward_(model, products_) {
  const DeltaConfig& d = m_.delta;
  for (const LayerWeights& layer : w_.layers) {
    std::vector<float>& taps = conv_taps_.emplace_back(layer.delta.conv.size());
    for (size_t c = 0; !taps.empty() && c < d.conv_channels(); ++c)
      for (size_t j = 0; j < d.conv_width; ++j)
        taps[j * d.conv_channels() + c] = layer.delta.conv[c * d.conv_width + j];
  }
}

std::unique_ptr<Sequence> CpuBackend::make_sequence(size_t capacity) {
  return std::make_unique<CpuSequence>(m_, capacity, kv_, pages_);
}

std::unique_ptr<Sequence> CpuBackend::make_mtp_sequence(size_t capacity) {
  return w_.mtp ? std::make_unique<CpuSequence>(mtp_, capacity, kv_, pages_) : nullptr;
}

bool CpuBackend::tap(const CpuStep& s, std::string_view name, uint64_t layer, float* values, size_t rows,
                     size_t cols) {
  return s.tap.wants(name) && s.tap.call({name, layer, rows, cols, {values, rows * cols}});
}

CpuBackend::Run CpuBackend::run_of(const Slice& slice) const {
  return {static_cast<CpuSequence*>(slice.sequence), slice.first, slice.count, slice.sequence->position()};
}

std::unique_ptr<Step> CpuBackend::begin(const Batch& batch, const Tap& tap) {
  auto s = std::make_unique<CpuStep>(batch, tap);
  s->x = x_.get(s->n * m_.d_model);
  const size_t half = m_.rope.inv_freq.size();
  float *c = rope_.get(2 * s->n * half), *sn = c + s->n * half;
  s->cosine = c;
  s->sine = sn;
  for (const Slice& slice : batch.slices) run_of(slice).sequence->begin_step(slice.count);
  for (const Slice& slice : batch.slices)
    for (size_t i = 0; i < slice.count; ++i)
      for (size_t f = 0; f < half; ++f) {
        const float angle = static_cast<float>(slice.sequence->position() + i) * m_.rope.inv_freq[f];
        c[(slice.first + i) * half + f] = std::cos(angle) * m_.rope.scale;
        sn[(slice.first + i) * half + f] = std::sin(angle) * m_.rope.scale;
      }
  return s;
}

void CpuBackend::norm(const float* x, size_t n, Vector w, float eps, const Panel& out) {
  pool_.run(n, [&](size_t t, size_t) {
    float* to = const_cast<float*>(out.f) + t * out.stride;
    ops_.rms_norm(x + t * w.size(), w.data(), w.size(), eps, to);
    if (products_.fast()) ops_.quantise(to, out, t);
  });
}

void CpuBackend::product(const Linear& l, const Panel& x, float* out) {
  const Product p{l.w, l.bias, x, nullptr, x.n, out, l.w.rows};
  products_.run({&p, 1});
}

void CpuBackend::add_to_residual(CpuStep& s, const float* y) {
  const size_t d = m_.d_model;
  for (size_t i = 0; i < s.n * d; ++i) s.x[i] += y[i];
}

void CpuBackend::fetch_ahead(const CpuStep& s, std::initializer_list<const MatrixView*> together) {
  if (s.n == 1) products_.fetch_ahead({together.begin(), together.size()});
}

void CpuBackend::fetch_next_layer(const CpuStep& s, const LayerWeights& layer) {
  if (s.batch.mtp() || layer.index + 1 == w_.layers.size()) return fetch_ahead(s, {&w_.head});
  const LayerWeights& next = w_.layers[layer.index + 1];
  switch (next.config->mixer) {
    case Mixer::Attention:
      return fetch_ahead(s, {&next.attention.q.w, &next.attention.k.w, &next.attention.v.w});
    case Mixer::Mla:
      return fetch_ahead(s, {next.mla.q ? &next.mla.q : &next.mla.q_a.w, &next.mla.kv_a.w});
    case Mixer::DeltaNet:
      return fetch_ahead(s, {&next.delta.b, &next.delta.a, &next.delta.qkv, &next.delta.z});
  }
}

void CpuBackend::embed(Step& step) {
  CpuStep& s = own(step);
  pool_.run(s.n,
            [&](size_t t, size_t) { dequantise_row(w_.embedding, s.batch.tokens[t], s.x + t * m_.d_model); });
  tap(s, "embed", 0, s.x, s.n, m_.d_model);
}

void CpuBackend::join_hidden(Step& step) {
  CpuStep& s = own(step);
  const MtpWeights& w = *w_.mtp;
  const size_t d = m_.d_model;
  const Panel both = mixed_.make(s.n, 2 * d);
  pool_.run(s.n, [&](size_t t, size_t) {
    float* to = const_cast<float*>(both.f) + t * both.stride;
    ops_.rms_norm(s.x + t * d, w.embedding_norm.data(), d, m_.norm_eps, to);
    ops_.rms_norm(s.batch.hidden.data() + t * d, w.hidden_norm.data(), d, m_.norm_eps, to + d);
    if (products_.fast()) ops_.quantise(to, both, t);
  });
  product({w.fc, {}}, both, s.x);
}

void CpuBackend::attention(Step& step, const LayerWeights& layer) {
  CpuStep& s = own(step);
  const bool fine = products_.fast() && layer.config->mixer == Mixer::DeltaNet;
  const Panel h = h_.make(fine ? 2 * s.n : s.n, m_.d_model);  // room for what the int8 form leaves over
  norm(s.x, s.n, layer.attn_norm, m_.norm_eps, h);
  switch (layer.config->mixer) {
    case Mixer::Attention:
      grouped_attention(s, layer, h);
      break;
    case Mixer::Mla:
      latent_attention(s, layer, h);
      break;
    case Mixer::DeltaNet:
      delta_net(s, layer, h);
      break;
  }
  tap(s, "attention", layer.index, s.x, s.n, m_.d_model);
}

void CpuBackend::route(Step& step, const LayerWeights& layer) {
  CpuStep& s = own(step);
  const MoeConfig& moe = m_.moe;
  s.h = h_.make(s.n, m_.d_model);
  norm(s.x, s.n, layer.mlp_norm, m_.norm_eps, s.h);
  float* logits = router_.get(s.n * (moe.n_experts + 1));
  float* gates = logits + s.n * moe.n_experts;  // of the shared expert
  std::vector<Product> jobs{
      {layer.router.w, layer.router.bias, s.h, nullptr, s.n, logits, moe.n_experts, true}};
  if (moe.shared_gated) jobs.push_back({layer.shared_gate, {}, s.h, nullptr, s.n, gates, 1, true});
  products_.run(jobs);
  if (moe.shared_width) fetch_ahead(s, {&layer.shared.gate.w});
  tap(s, "router_logits", layer.index, logits, s.n, moe.n_experts);

  const RouterRule rule = router_rule(moe, layer.score_bias);
  s.ids = ids_.get(s.n * moe.top_k);
  s.weights = router_weights_.get(s.n * moe.top_k);
  pool_.run(s.n, [&](size_t t, size_t) {
    route_ref(rule, {&logits[t * moe.n_experts], moe.n_experts}, &s.ids[t * moe.top_k],
              &s.weights[t * moe.top_k]);
  });
  if (s.tap.wants("topk_ids")) {
    std::vector<float> ids(s.ids, s.ids + s.n * moe.top_k);
    if (tap(s, "topk_ids", layer.index, ids.data(), s.n, moe.top_k))
      for (size_t i = 0; i < ids.size(); ++i) s.ids[i] = static_cast<uint32_t>(ids[i]);
    tap(s, "topk_weights", layer.index, s.weights, s.n, moe.top_k);
  }
}

void CpuBackend::begin_experts(Step& step, const LayerWeights& layer, ExpertStore& store) {
  CpuStep& s = own(step);
  const MoeConfig& moe = m_.moe;
  const size_t n_picks = s.n * moe.top_k;
  // Picks sorted by expert: picks_ holds their tokens, pick_row_ where each one's result goes.
  first_pick_.assign(moe.n_experts + 1, 0);
  for (size_t i = 0; i < n_picks; ++i) ++first_pick_[s.ids[i] + 1];
  for (size_t e = 0; e < moe.n_experts; ++e) first_pick_[e + 1] += first_pick_[e];
  picks_.resize(n_picks);
  pick_row_.resize(n_picks);
  std::vector<uint32_t> next(first_pick_.begin(), first_pick_.end() - 1);
  for (size_t i = 0; i < n_picks; ++i) {
    pick_row_[i] = next[s.ids[i]]++;
    picks_[pick_row_[i]] = static_cast<uint32_t>(i / moe.top_k);
  }
  std::vector<ExpertKey> keys;
  for (uint32_t e = 0; e < moe.n_experts; ++e)
    if (first_pick_[e] < first_pick_[e + 1]) keys.push_back({layer.store_layer, e});
  s.demand.emplace(store, keys, s.batch.sweeps() ? ExpertStore::Use::Sweep : ExpertStore::Use::Decode);
}

void CpuBackend::complete_experts(Step& step, const LayerWeights& layer, ExpertStore& store) {
  CpuStep& s = own(step);
  const MoeConfig& moe = m_.moe;
  const size_t d = m_.d_model, k = moe.top_k;
  float* each = each_.get(s.n * k * d);
  float* shared = moe.shared_width ? shared_.get(s.n * d) : nullptr;
  std::vector<ExpertStore::Lease> leases;
  std::vector<ExpertInput> inputs;
  if (shared) inputs.push_back({layer.shared, Activation::Swiglu, nullptr, s.n, shared});
  if (shared && !s.demand->any_ready()) {  // there is something to do before the first expert arrives
    feed_forward_.run(inputs, s.h);
    inputs.clear();
  }
  // What is there is computed while the rest is on its way. In a sweep few at a time: their slots are then
  // free for the experts that follow.
  const size_t most = s.batch.sweeps() ? kSweepLeases : SIZE_MAX;
  while (s.demand->take(leases, most)) {
    for (const ExpertStore::Lease& lease : leases) {
      const uint64_t e = lease.key().expert;
      inputs.push_back({bind_expert(store.layer(layer.store_layer), lease.bytes()), moe.activation,
                        &picks_[first_pick_[e]], first_pick_[e + 1] - first_pick_[e],
                        each + first_pick_[e] * d});
    }
    feed_forward_.run(inputs, s.h);
    inputs.clear();
    leases.clear();
  }
  s.demand.reset();
  fetch_next_layer(s, layer);

  const float* gates = router_.get(0) + s.n * moe.n_experts;
  worker_floats_ = d;
  worker_.get(pool_.size() * d);
  pool_.run(s.n, [&](size_t t, size_t worker) {
    float* sum = worker_.get(0) + worker * worker_floats_;
    std::fill_n(sum, d, 0.0f);
    for (size_t j = 0; j < k; ++j)
      ops_.add_scaled(each + pick_row_[t * k + j] * d, s.weights[t * k + j], d, sum);
    if (shared) ops_.add_scaled(shared + t * d, moe.shared_gated ? sigmoid(gates[t]) : 1.0f, d, sum);
    for (size_t i = 0; i < d; ++i) s.x[t * d + i] += sum[i];
  });
  tap(s, "mlp", layer.index, s.x, s.n, d);
}

std::span<const uint32_t> CpuBackend::chosen(const Step& step) const {
  const auto& s = static_cast<const CpuStep&>(step);
  return {s.ids, s.n * m_.moe.top_k};
}

std::span<const uint32_t> CpuBackend::guess(Step& step, const LayerWeights& later) {
  CpuStep& s = own(step);
  const MoeConfig& moe = m_.moe;
  const Panel h = guess_h_.make(s.n, m_.d_model);
  norm(s.x, s.n, later.mlp_norm, m_.norm_eps, h);
  float* logits = guess_logits_.get(s.n * (moe.n_experts + moe.top_k));
  float* weights = logits + s.n * moe.n_experts;
  const Product p{later.router.w, later.router.bias, h, nullptr, s.n, logits, moe.n_experts, true};
  products_.run({&p, 1});
  guess_.resize(s.n * moe.top_k);
  const RouterRule rule = router_rule(moe, later.score_bias);
  for (size_t t = 0; t < s.n; ++t)
    route_ref(rule, {&logits[t * moe.n_experts], moe.n_experts}, &guess_[t * moe.top_k],
              &weights[t * moe.top_k]);
  return guess_;
}

void CpuBackend::mlp(Step& step, const LayerWeights& layer) {
  CpuStep& s = own(step);
  const Panel h = h_.make(s.n, m_.d_model);
  norm(s.x, s.n, layer.mlp_norm, m_.norm_eps, h);
  float* y = y_.get(s.n * m_.d_model);
  const ExpertInput input{layer.dense, Activation::Swiglu, nullptr, s.n, y};
  feed_forward_.run({&input, 1}, h);
  fetch_next_layer(s, layer);
  add_to_residual(s, y);
  tap(s, "mlp", layer.index, s.x, s.n, m_.d_model);
}

void CpuBackend::logits(Step& step, std::span<float> out) {
  CpuStep& s = own(step);
  const size_t n = s.batch.logit_rows.size(), d = m_.d_model;
  const Vector weight = s.batch.mtp() ? w_.mtp->norm : w_.final_norm;
  if (s.tap || !s.batch.final_norm.empty()) {  // all rows
    const Panel all = h_.make(s.n, d);
    norm(s.x, s.n, weight, m_.norm_eps, all);
    if (tap(s, "final_norm", m_.n_layers(), const_cast<float*>(all.f), s.n, d)) products_.quantise(all);
    if (!s.batch.final_norm.empty()) std::copy_n(all.f, s.n * d, s.batch.final_norm.data());
    const Product p{w_.head, {}, all, s.batch.logit_rows.data(), n, out.data(), m_.n_vocab};
    products_.run({&p, 1});
    tap(s, "logits", m_.n_layers(), out.data(), n, m_.n_vocab);
    return;
  }
  const Panel h = wanted_.make(n, d);
  pool_.run(n, [&](size_t i, size_t) {
    float* to = const_cast<float*>(h.f) + i * d;
    ops_.rms_norm(s.x + s.batch.logit_rows[i] * d, weight.data(), d, m_.norm_eps, to);
    if (products_.fast()) ops_.quantise(to, h, i);
  });
  const Product p{w_.head, {}, h, nullptr, n, out.data(), m_.n_vocab};
  products_.run({&p, 1});
}

std::unique_ptr<Backend> make_cpu_backend(const ModelConfig& model, const ModelWeights& weights,
                                          const CpuOptions& options) {
  return std::make_unique<CpuBackend>(model, weights, options);
}

}  // namespace moeflux
