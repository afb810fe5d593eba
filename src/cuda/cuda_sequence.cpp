#include "cuda/cuda_sequence.h"

#include <algorithm>

#include "base/checked.h"

namespace moeflux::cuda {
namespace {

constexpr uint64_t kAlign = 256;

size_t device_rows(const LayerConfig& layer, size_t capacity, size_t chunk) {
  const size_t rows = layer.window ? std::min<size_t>(layer.window + chunk - 1, capacity) : capacity;
  return (rows + kKvBlock - 1) / kKvBlock * kKvBlock;
}

// Where everything lies, from the start of the sequence's memory on; returns the bytes in all.
uint64_t lay_out(const ModelConfig& m, size_t capacity, KvType type, size_t chunk, std::byte* base,
                 std::vector<LayerCache>* into) {
  uint64_t at = 0;
  const auto take = [&](uint64_t bytes) {
    std::byte* p = base + at;
    at = checked_add(at, align_up(bytes, kAlign), "KV cache");
    return bytes ? p : nullptr;
  };
  for (const LayerConfig& layer : m.layers) {
    LayerCache c{};
    if (layer.mixer == Mixer::DeltaNet) {
      const DeltaConfig& d = m.delta;
      c.conv = reinterpret_cast<float*>(take((d.conv_width - 1) * d.conv_channels() * sizeof(float)));
      c.state = reinterpret_cast<float*>(take(d.n_value_heads * d.key_dim * d.value_dim * sizeof(float)));
    } else {
      const bool latent = layer.mixer == Mixer::Mla;
      const size_t rows = device_rows(layer, capacity, chunk), heads = latent ? 1 : m.attention.n_kv_heads,
                   key_dim = latent ? kv_width(m, layer) : m.attention.head_dim,
                   value_dim = latent ? 0 : key_dim,
                   scale_bytes = type == KvType::Q8 ? heads * rows * sizeof(float) : 0;
      c.rows = static_cast<uint32_t>(rows);
      c.keys = take(checked_mul(heads * rows * kv_value_bytes(type), key_dim, "KV cache"));
      c.values = take(checked_mul(heads * rows * kv_value_bytes(type), value_dim, "KV cache"));
      c.key_scale = reinterpret_cast<float*>(take(scale_bytes));
      c.value_scale = reinterpret_cast<float*>(take(latent ? 0 : scale_bytes));
    }
    if (into) into->push_back(c);
  }
  return at;
}

}  // namespace

uint64_t cuda_sequence_bytes(const ModelConfig& model, size_t capacity, KvType type, size_t chunk) {
  return lay_out(model, capacity, type, chunk, nullptr, nullptr);
}

CudaSequence::CudaSequence(const ModelConfig& model, size_t capacity, KvType type, size_t chunk,
                           cudaStream_t stream)
    : Sequence(capacity),
      memory_(cuda_sequence_bytes(model, capacity, type, chunk), "KV cache"),
      table_(model.n_layers() * sizeof(LayerCache), "table of KV caches") {
  std::vector<LayerCache> layers;
  lay_out(model, capacity, type, chunk, memory_.as<>(), &layers);
  for (const LayerCache& c : layers) rows_.push_back(c.rows);
  check_cuda(cudaMemsetAsync(memory_.as<>(), 0, memory_.size(), stream), "clearing a KV cache");
  check_cuda(cudaMemcpyAsync(table_.as<>(), layers.data(), table_.size(), cudaMemcpyHostToDevice, stream),
             "writing the table of KV caches");
  check_cuda(cudaStreamSynchronize(stream), "clearing a KV cache");
}

}  // namespace moeflux::cuda
