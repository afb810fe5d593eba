// KV cache and recurrent state of one sequence as the kernels want them: per layer and key/value head, keys
// in tiles, values in rows.
#pragma once

#include "model/backend.h"

namespace moeflux {

class CpuSequence : public Sequence {
 public:
  CpuSequence(const ModelConfig& model, size_t capacity, KvType type);
  uint64_t bytes() const override { return bytes_; }

  const KvHead& kv(uint64_t layer, size_t head) const { return layers_[layer].heads[head]; }
  DeltaHead delta(uint64_t layer, size_t head) const;
  float* conv(uint64_t layer) const {
    return layers_[layer].memory.floats().data();
  }  // [width - 1, channels]

 private:
  struct Layer {
    AlignedBuffer memory;
    std::vector<KvHead> heads;
  };
  Layer attention_layer(const ModelConfig& model, const LayerConfig& layer, KvType type) const;

  const DeltaConfig& delta_;
  uint64_t bytes_;
  std::vector<Layer> layers_;
};

}  // namespace moeflux
