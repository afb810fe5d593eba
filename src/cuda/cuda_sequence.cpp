#include "cuda/cuda_sequence.h"

#include <algorithm>
#include <cmath>

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
      const KvShape shape = kv_shape(m, layer);
      const size_t rows = device_rows(layer, capacity, chunk), in_all = shape.heads * rows,
                   scale_bytes = type == KvType::Q8 ? in_all * sizeof(float) : 0;
      c.rows = static_cast<uint32_t>(rows);
      c.keys = take(checked_mul(in_all * kv_value_bytes(type), shape.key_dim, "KV cache"));
      c.values = take(
          checked_mul(in_all * kv_value_bytes(type), shape.own_values ? shape.value_dim : 0, "KV cache"));
      c.key_scale = reinterpret_cast<float*>(take(scale_bytes));
      c.value_scale = reinterpret_cast<float*>(take(shape.own_values ? scale_bytes : 0));
    }
    if (into) into->push_back(c);
  }
  return at;
}

// Calls fn(bytes) for the rows of a layer that a saved state holds, in order.
template <class Fn>
void for_each_row(const ModelConfig& m, const LayerConfig& layer, KvType type, const LayerCache& c,
                  size_t position, Fn fn) {
  const KvShape shape = kv_shape(m, layer);
  const size_t first = first_visible(layer, position), value = kv_value_bytes(type);
  const auto rows = [&](void* base, size_t head, size_t row_bytes) {
    for (size_t p = first; base && p < position; ++p)
      fn(std::span(static_cast<std::byte*>(base) + (head * c.rows + p % c.rows) * row_bytes, row_bytes));
  };
  for (size_t head = 0; head < shape.heads; ++head) {
    rows(c.keys, head, shape.key_dim * value);
    rows(c.values, head, shape.value_dim * value);
    rows(c.key_scale, head, sizeof(float));
    rows(c.value_scale, head, sizeof(float));
  }
}

std::span<float> conv_of(const DeltaConfig& d, const LayerCache& c) {
  return {c.conv, (d.conv_width - 1) * d.conv_channels()};
}
std::span<float> state_of(const DeltaConfig& d, const LayerCache& c) {
  return {c.state, d.n_value_heads * d.key_dim * d.value_dim};
}

// The tokens of a block that were saved beside the state are folded into it (ops/delta.h).
void load_delta(const DeltaConfig& d, const LayerCache& c, size_t position, StateSource& source) {
  uint32_t n = 0;
  source.read(std::as_writable_bytes(std::span(&n, 1)));
  if (n != 0 && n != position % kDeltaBlock)
    fail(Errc::Corrupt, "a state at position {} with {} tokens of a block", position, n);
  source.read(std::as_writable_bytes(conv_of(d, c)));
  std::vector<float> keys(n * d.key_dim), values(n * d.value_dim), decay(n);
  for (size_t head = 0; head < d.n_value_heads; ++head) {
    float* state = c.state + head * d.key_dim * d.value_dim;
    source.read(std::as_writable_bytes(std::span(state, d.key_dim * d.value_dim)));
    source.read(std::as_writable_bytes(std::span(keys)));
    source.read(std::as_writable_bytes(std::span(values)));
    source.read(std::as_writable_bytes(std::span(decay)));
    if (n == 0) continue;
    const float keep = std::exp(decay.back());
    for (size_t i = 0; i < d.key_dim * d.value_dim; ++i) state[i] *= keep;
    for (size_t t = 0; t < n; ++t) {
      const float factor = std::exp(decay.back() - decay[t]);
      for (size_t i = 0; i < d.key_dim; ++i)
        for (size_t j = 0; j < d.value_dim; ++j)
          state[i * d.value_dim + j] += factor * keys[t * d.key_dim + i] * values[t * d.value_dim + j];
    }
  }
}

}  // namespace

uint64_t cuda_sequence_bytes(const ModelConfig& model, size_t capacity, KvType type, size_t chunk) {
  return lay_out(model, capacity, type, chunk, nullptr, nullptr);
}

CudaSequence::CudaSequence(const ModelConfig& model, size_t capacity, KvType type, size_t chunk,
                           cudaStream_t stream)
    : Sequence(capacity),
      model_(model),
      type_(type),
      chunk_(chunk),
      stream_(stream),
      memory_(cuda_sequence_bytes(model, capacity, type, chunk), "KV cache"),
      table_(model.n_layers() * sizeof(LayerCache), "table of KV caches") {
  check_cuda(cudaMemsetAsync(memory_.as<>(), 0, memory_.size(), stream), "clearing a KV cache");
  write_table();
}

CudaSequence::CudaSequence(const CudaSequence& o)
    : Sequence(o),
      model_(o.model_),
      type_(o.type_),
      chunk_(o.chunk_),
      loaded_at_(o.loaded_at_),
      stream_(o.stream_),
      memory_(o.memory_.size(), "KV cache"),
      table_(o.table_.size(), "table of KV caches") {
  check_cuda(
      cudaMemcpyAsync(memory_.as<>(), o.memory_.as<>(), memory_.size(), cudaMemcpyDeviceToDevice, stream_),
      "copying a KV cache");
  write_table();
}

// The layers' addresses in this sequence's memory. Waits for the stream.
void CudaSequence::write_table() {
  std::vector<LayerCache> layers;
  lay_out(model_, capacity(), type_, chunk_, memory_.as<>(), &layers);
  for (const LayerCache& c : layers) rows_.push_back(c.rows);
  check_cuda(cudaMemcpyAsync(table_.as<>(), layers.data(), table_.size(), cudaMemcpyHostToDevice, stream_),
             "writing the table of KV caches");
  check_cuda(cudaStreamSynchronize(stream_), "writing the table of KV caches");
}

std::unique_ptr<Sequence> CudaSequence::copy() const {
  return std::unique_ptr<Sequence>(new CudaSequence(*this));
}

// A delta net's state is that of its last token.
bool CudaSequence::can_cut_state(size_t position) const {
  if (position < loaded_at_) return false;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const LayerConfig& layer = model_.layers[i];
    if (layer.mixer == Mixer::DeltaNet || !ring_can_cut(layer, rows_[i], furthest(), position)) return false;
  }
  return true;
}

size_t CudaSequence::removable() const {
  size_t most = SIZE_MAX;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const LayerConfig& layer = model_.layers[i];
    if (layer.mixer == Mixer::DeltaNet) return 0;
    most = std::min(most, ring_removable(layer, rows_[i], position()));
  }
  return most;
}

// -- saved states: through a copy of all of its memory on the host

uint64_t CudaSequence::state_bytes(Saved what) const {
  return saved_bytes(model_, position(), type_, 0, what);
}

void CudaSequence::save_state(StateSink& sink, Saved what) const {
  std::vector<std::byte> host(memory_.size());
  check_cuda(cudaMemcpyAsync(host.data(), memory_.as<>(), host.size(), cudaMemcpyDeviceToHost, stream_),
             "reading a KV cache");
  check_cuda(cudaStreamSynchronize(stream_), "reading a KV cache");
  std::vector<LayerCache> layers;
  lay_out(model_, capacity(), type_, chunk_, host.data(), &layers);
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerConfig& layer = model_.layers[i];
    if (!is_saved(layer, what)) continue;
    if (layer.mixer == Mixer::DeltaNet) {
      const uint32_t block = 0;
      sink.write(std::as_bytes(std::span(&block, 1)));
      sink.write(std::as_bytes(conv_of(model_.delta, layers[i])));
      sink.write(std::as_bytes(state_of(model_.delta, layers[i])));
    } else {
      for_each_row(model_, layer, type_, layers[i], position(),
                   [&](std::span<const std::byte> row) { sink.write(row); });
    }
  }
}

void CudaSequence::load_state(StateSource& source, size_t position, Saved what) {
  std::vector<std::byte> host(memory_.size());
  check_cuda(cudaMemcpyAsync(host.data(), memory_.as<>(), host.size(), cudaMemcpyDeviceToHost, stream_),
             "reading a KV cache");
  check_cuda(cudaStreamSynchronize(stream_), "reading a KV cache");
  std::vector<LayerCache> layers;
  lay_out(model_, capacity(), type_, chunk_, host.data(), &layers);
  bool needs_all = false;  // to go back
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerConfig& layer = model_.layers[i];
    needs_all = needs_all || layer.mixer == Mixer::DeltaNet || layer.window > 0;
    if (!is_saved(layer, what)) continue;
    if (layer.mixer == Mixer::DeltaNet)
      load_delta(model_.delta, layers[i], position, source);
    else
      for_each_row(model_, layer, type_, layers[i], position,
                   [&](std::span<std::byte> row) { source.read(row); });
  }
  loaded_at_ = needs_all ? position : 0;
  check_cuda(cudaMemcpyAsync(memory_.as<>(), host.data(), host.size(), cudaMemcpyHostToDevice, stream_),
             "writing a KV cache");
  check_cuda(cudaStreamSynchronize(stream_), "writing a KV cache");
}

}  // namespace moeflux::cuda
