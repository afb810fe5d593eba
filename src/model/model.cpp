#include "model/model.h"

#include <algorithm>

#include "base/checked.h"

namespace moeflux {

void Model::forward(const Batch& batch, std::span<float> logits, const Tap& tap) {
  check_batch(batch);
  const auto start = std::chrono::steady_clock::now();
  const size_t n_rows = batch.logit_rows.size(), n_listed = batch.shortlists.size();
  check(logits.size() == (n_listed ? 0 : n_rows * config_.n_vocab), "room for the logits");
  check(n_listed == batch.wishes.size() &&
            (!n_listed || (n_listed == n_rows && backend_.keeps_logits() && !tap)),
        "shortlists of a backend that makes them, which no tap sees");
  for (const Slice& s : batch.slices) s.sequence->broken_ = true;

  const std::unique_ptr<Step> step = backend_.begin(batch, tap);
  const auto traced = [&](const char* name, int64_t layer, auto&& stage) {
    const TraceSpan span(trace_, "stage", name, layer);
    stage();
  };
  backend_.embed(*step);
  if (batch.mtp()) traced("join_hidden", -1, [&] { backend_.join_hidden(*step); });
  const std::span<const LayerWeights> layers =
      batch.mtp() ? std::span(&weights_.mtp->layer, 1) : std::span(weights_.layers);
  for (const LayerWeights& layer : layers) {
    const auto at = static_cast<int64_t>(layer.store_layer);
    traced("attention", at, [&] { backend_.attention(*step, layer); });
    if (layer.config->sparse) {
      traced("route", at, [&] { backend_.route(*step, layer); });
      backend_.begin_experts(*step, layer, store_);
      if (!batch.mtp()) prefetcher_.expect_next(*step, layer, batch);
      traced("experts", at, [&] { backend_.complete_experts(*step, layer, store_); });
    } else {
      traced("mlp", at, [&] { backend_.mlp(*step, layer); });
    }
  }
  traced("logits", -1, [&] { backend_.logits(*step, logits); });

  for (const Slice& s : batch.slices) s.sequence->advance(s.count);
  if (batch.mtp()) return;
  prefetcher_.step_done(batch.tokens.size(),
                        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

void Model::check_batch(const Batch& batch) const {
  size_t next = 0;
  for (const Slice& s : batch.slices) {
    check(s.first == next && s.count > 0, "slices that cover the batch");
    next += s.count;
    for (const Slice* other = batch.slices.data(); other < &s; ++other)
      check(other->sequence != s.sequence, "one slice for each sequence of a batch");
    if (s.sequence->broken_)
      fail(Errc::InvalidArgument, "this sequence's last step failed half-way; it cannot be continued");
    if (s.count > s.sequence->capacity() - s.sequence->position())
      fail(Errc::InvalidArgument, "{} tokens at position {} do not fit in the context of {}", s.count,
           s.sequence->position(), s.sequence->capacity());
  }
  check(next == batch.tokens.size(), "slices that cover the batch");
  const size_t values = batch.tokens.size() * config_.d_model;
  check(!batch.mtp() || (weights_.mtp && batch.hidden.size() == values), "a state for every token");
  check(batch.final_norm.empty() || batch.final_norm.size() == values, "room for the final norm");
  for (const Token t : batch.tokens)
    if (t >= config_.n_vocab)
      fail(Errc::InvalidArgument, "token {} is not in the vocabulary of {}", t, config_.n_vocab);
}

Tap chain_taps(Tap first, Tap second) {
  if (!first.call) return second;
  if (!second.call) return first;
  const bool only_routes = first.only_routes && second.only_routes;
  const bool first_late = first.late, second_late = second.late;
  const auto both = [first = std::move(first), second = std::move(second)](const TapTensor& t) {
    const bool changed_first = first.wants(t.name) && first.call(t);
    const bool changed_second = second.wants(t.name) && second.call(t);
    return changed_first || changed_second;
  };
  return {.call = both, .only_routes = only_routes, .late = first_late && second_late};
}

RouterRule router_rule(const MoeConfig& moe, Vector score_bias) {
  return {.kind = moe.router == Router::Softmax   ? RouterRule::Softmax
                  : moe.router == Router::Sigmoid ? RouterRule::Sigmoid
                                                  : RouterRule::TopkSoftmax,
          .top_k = moe.top_k,
          .n_groups = moe.n_groups,
          .top_groups = moe.top_groups,
          .norm = moe.norm_topk,
          .norm_eps = moe.norm_eps,
          .scaling = moe.scaling,
          .score_bias = score_bias};
}

size_t kv_rows(const LayerConfig& layer, size_t capacity) {
  const size_t rows = layer.window ? std::min<size_t>(layer.window + kKvBlock - 1, capacity) : capacity;
  return (rows + kKvBlock - 1) / kKvBlock * kKvBlock;
}

size_t kv_width(const ModelConfig& model, const LayerConfig& layer) {
  switch (layer.mixer) {
    case Mixer::Attention:
      return 2 * model.attention.n_kv_heads * model.attention.head_dim;
    case Mixer::Mla:
      return model.mla.kv_rank + model.mla.rope_dim;
    case Mixer::DeltaNet:
      break;
  }
  return 0;
}

KvShape kv_shape(const ModelConfig& model, const LayerConfig& layer) {
  if (layer.mixer == Mixer::Mla) return {1, kv_width(model, layer), model.mla.kv_rank, false};
  return {model.attention.n_kv_heads, model.attention.head_dim, model.attention.head_dim, true};
}

size_t first_visible(const LayerConfig& layer, size_t position) {
  return layer.window && position + 1 > layer.window ? position + 1 - layer.window : 0;
}

bool ring_can_cut(const LayerConfig& layer, size_t rows, size_t written, size_t position) {
  const size_t first = first_visible(layer, position);
  return first >= position || first + rows >= written;
}

size_t ring_removable(const LayerConfig& layer, size_t rows, size_t position) {
  return layer.window ? first_visible(layer, position) + rows - position : SIZE_MAX;
}

bool is_saved(const LayerConfig& layer, Saved what) {
  return what == Saved::All || layer.mixer == Mixer::DeltaNet || layer.window > 0;
}

uint64_t saved_bytes(const ModelConfig& model, size_t position, KvType type, size_t block, Saved what) {
  const DeltaConfig& d = model.delta;
  uint64_t sum = 0;
  for (const LayerConfig& layer : model.layers) {
    if (!is_saved(layer, what)) continue;
    if (layer.mixer == Mixer::DeltaNet) {
      const uint64_t head = d.key_dim * d.value_dim + block * (d.key_dim + d.value_dim + 1);
      sum += sizeof(uint32_t) +
             sizeof(float) * ((d.conv_width - 1) * d.conv_channels() + d.n_value_heads * head);
    } else {
      const KvShape shape = kv_shape(model, layer);
      const uint64_t scales = type == KvType::Q8 ? sizeof(float) : 0,
                     key = shape.key_dim * kv_value_bytes(type) + scales,
                     value = shape.own_values ? shape.value_dim * kv_value_bytes(type) + scales : 0;
      sum += (position - first_visible(layer, position)) * shape.heads * (key + value);
    }
  }
  return sum;
}

size_t conv_history(const ModelConfig& model) { return model.delta.conv_width - 1 + kConvSlack; }

size_t delta_state_floats(const ModelConfig& model) {
  const DeltaConfig& d = model.delta;
  const size_t state = d.n_value_heads * d.key_dim * d.value_dim;
  const size_t block = kDeltaBlock * d.n_value_heads * (d.key_dim + d.value_dim + 1);
  return state + block + d.conv_channels() * conv_history(model);
}

uint64_t kv_bytes(const ModelConfig& model, const LayerConfig& layer, size_t capacity, KvType type) {
  const size_t scales = type != KvType::Q8          ? 0
                        : layer.mixer == Mixer::Mla ? 1
                                                    : 2 * model.attention.n_kv_heads;
  const uint64_t row =
      checked_mul(kv_width(model, layer), kv_value_bytes(type), "KV cache") + scales * sizeof(float);
  return checked_mul(kv_rows(layer, capacity), row, "KV cache");
}

uint64_t sequence_bytes(const ModelConfig& model, size_t capacity, KvType type) {
  uint64_t sum = 0;
  for (const LayerConfig& layer : model.layers)
    sum = checked_add(sum,
                      layer.mixer == Mixer::DeltaNet ? delta_state_floats(model) * sizeof(float)
                                                     : kv_bytes(model, layer, capacity, type),
                      "KV cache");
  return sum;
}

}  // namespace moeflux
