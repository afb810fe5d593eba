#include "cpu/cpu_sequence.h"

namespace moeflux {

CpuSequence::CpuSequence(const ModelConfig& model, size_t capacity, KvType type)
    : Sequence(capacity), delta_(model.delta), bytes_(sequence_bytes(model, capacity, type)) {
  for (const LayerConfig& layer : model.layers)
    layers_.push_back(layer.mixer == Mixer::DeltaNet
                          ? Layer{AlignedBuffer(delta_state_floats(model) * sizeof(float)), {}}
                          : attention_layer(model, layer, type));
}

CpuSequence::Layer CpuSequence::attention_layer(const ModelConfig& model, const LayerConfig& layer,
                                                KvType type) const {
  const bool latent = layer.mixer == Mixer::Mla;
  const size_t rows = kv_rows(layer, capacity()), heads = latent ? 1 : model.attention.n_kv_heads;
  const size_t key_dim = latent ? kv_width(model, layer) : model.attention.head_dim;
  const size_t value_dim = latent ? model.mla.kv_rank : key_dim;
  const size_t value_bytes = latent ? 0 : rows * value_dim * kv_value_bytes(type),
               key_bytes = rows * key_dim * kv_value_bytes(type),
               scale_bytes = type == KvType::Q8 ? rows * sizeof(float) : 0;
  Layer l{AlignedBuffer(kv_bytes(model, layer, capacity(), type)), {}};
  std::byte* at = l.memory.data();
  const auto take = [&](size_t bytes) { return bytes ? std::exchange(at, at + bytes) : nullptr; };
  for (size_t h = 0; h < heads; ++h) {
    KvHead head{type, rows, key_dim, value_dim, take(key_bytes), take(value_bytes), nullptr, nullptr};
    head.key_scale = reinterpret_cast<float*>(take(scale_bytes));
    if (!latent) head.value_scale = reinterpret_cast<float*>(take(scale_bytes));
    l.heads.push_back(head);
  }
  return l;
}

DeltaHead CpuSequence::delta(uint64_t layer, size_t head) const {
  const DeltaConfig& d = delta_;
  const size_t state = d.key_dim * d.value_dim, keys = kDeltaBlock * d.key_dim,
               values = kDeltaBlock * d.value_dim;
  float* at =
      conv(layer) + (d.conv_width - 1) * d.conv_channels() + head * (state + keys + values + kDeltaBlock);
  return {d.key_dim, d.value_dim, at, at + state, at + state + keys, at + state + keys + values};
}

}  // namespace moeflux
