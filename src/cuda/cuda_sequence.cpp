#include "cuda/cuda_sequence.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/checked.h"

namespace moeflux::cuda {
namespace {

static_assert(kKvPage == kKvBlock && kMostBack == kDeviceStatesBack);  // as the plan counts
static_assert(Sequence::kWatchStep % kKvPage == 0);

constexpr uint64_t kRowsAlign = 256;

size_t pages_for(size_t positions) { return ceil_div(positions, kKvPage); }

// Parts of a page or state, one behind the other.
class Parts {
 public:
  uint64_t take(uint64_t bytes) {
    const uint64_t at = bytes_;
    bytes_ = checked_add(bytes_, align_up(bytes, kRowsAlign), "KV cache");
    return at;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

// One layer's part of a page.
KvPlace attention_part(const ModelConfig& m, const LayerConfig& layer, KvType type, Parts& part) {
  const KvShape shape = kv_shape(m, layer);
  const uint64_t rows = shape.heads * kKvPage, value = kv_value_bytes(type),
                 scales = type == KvType::Q8 ? rows * sizeof(float) : 0;
  KvPlace p{};
  p.own_values = shape.own_values;
  p.keys = part.take(checked_mul(rows * value, shape.key_dim, "KV cache"));
  p.values = shape.own_values ? part.take(checked_mul(rows * value, shape.value_dim, "KV cache")) : p.keys;
  p.key_scale = part.take(scales);
  p.value_scale = shape.own_values ? part.take(scales) : p.key_scale;
  return p;
}

void add_delta(const DeltaConfig& d, Parts& state, SequenceMemory::Layer& to) {
  to.conv = state.take((d.conv_width - 1) * d.conv_channels() * sizeof(float)) / sizeof(float);
  to.state = state.take(d.n_value_heads * d.key_dim * d.value_dim * sizeof(float)) / sizeof(float);
}

// Calls fn(bytes) for the rows of a layer at positions [first, end), in the order of a saved state. pages:
// the layer's part of each page from that of `first` on.
template <class Fn>
void for_each_row(const KvShape& shape, KvType type, const SequenceMemory::Layer& layer, std::byte* pages,
                  size_t first, size_t end, Fn fn) {
  const size_t value = kv_value_bytes(type);
  const auto rows = [&](uint64_t part, size_t head, size_t row_bytes) {
    for (size_t p = first; p < end;) {
      const size_t n = std::min<size_t>(end - p, kKvPage - p % kKvPage);
      std::byte* page = pages + (p / kKvPage - first / kKvPage) * layer.bytes;
      fn(std::span(page + (part - layer.first) + (head * kKvPage + p % kKvPage) * row_bytes, n * row_bytes));
      p += n;
    }
  };
  for (size_t head = 0; head < shape.heads; ++head) {
    rows(layer.kv.keys, head, shape.key_dim * value);
    if (shape.own_values) rows(layer.kv.values, head, shape.value_dim * value);
    if (type != KvType::Q8) continue;
    rows(layer.kv.key_scale, head, sizeof(float));
    if (shape.own_values) rows(layer.kv.value_scale, head, sizeof(float));
  }
}

std::span<float> conv_of(const DeltaConfig& d, const SequenceMemory::Layer& layer, float* state) {
  return {state + layer.conv, (d.conv_width - 1) * d.conv_channels()};
}
std::span<float> state_of(const DeltaConfig& d, const SequenceMemory::Layer& layer, float* state) {
  return {state + layer.state, d.n_value_heads * d.key_dim * d.value_dim};
}

// The tokens of a block that were saved beside the state are folded into it (ops/delta.h).
void load_delta(const DeltaConfig& d, std::span<float> conv, std::span<float> states, size_t position,
                StateSource& source) {
  uint32_t n = 0;
  source.read(std::as_writable_bytes(std::span(&n, 1)));
  if (n != 0 && n != position % kDeltaBlock)
    fail(Errc::Corrupt, "a state at position {} with {} tokens of a block", position, n);
  source.read(std::as_writable_bytes(conv));
  std::vector<float> keys(n * d.key_dim), values(n * d.value_dim), decay(n);
  for (size_t head = 0; head < d.n_value_heads; ++head) {
    float* state = states.data() + head * d.key_dim * d.value_dim;
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

SequenceMemory::SequenceMemory(const ModelConfig& m, KvType kv, cudaStream_t s)
    : model(m), type(kv), stream(s), layers(m.n_layers()) {
  Parts state;
  std::map<uint64_t, std::vector<size_t>> by_window;
  for (size_t i = 0; i < layers.size(); ++i)
    if (m.layers[i].mixer == Mixer::DeltaNet)
      add_delta(m.delta, state, layers[i]);
    else
      by_window[m.layers[i].window].push_back(i);
  for (const auto& [window, members] : by_window) {
    Parts part;  // all attention layers of a model have the same shape
    KvPlace place = attention_part(m, m.layers[members[0]], type, part);
    place.group = static_cast<uint32_t>(groups.size());
    place.n_groups = static_cast<uint32_t>(by_window.size());
    groups.push_back({&m.layers[members[0]], std::make_shared<DevicePagePool>(part.bytes(), members.size())});
    for (size_t k = 0; k < members.size(); ++k) {
      Layer& layer = layers[members[k]];
      layer.first = k * groups.back().pool->stride();
      layer.bytes = part.bytes();
      layer.kv = place;
      for (uint64_t* at : {&layer.kv.keys, &layer.kv.values, &layer.kv.key_scale, &layer.kv.value_scale})
        *at += layer.first;
    }
  }
  if (state.bytes()) states = std::make_shared<DevicePagePool>(state.bytes(), 1, kMostBack + 1);
}

CudaSequence::CudaSequence(std::shared_ptr<const SequenceMemory> memory, size_t capacity)
    : Sequence(capacity), memory_(std::move(memory)), groups_(memory_->groups.size()) {}

CudaSequence::CudaSequence(const CudaSequence& o)
    : Sequence(o), memory_(o.memory_), groups_(o.groups_), state_(o.state_), loaded_at_(o.loaded_at_) {}

std::unique_ptr<Sequence> CudaSequence::copy() const {
  return std::unique_ptr<Sequence>(new CudaSequence(*this));
}

std::vector<MemoryPart> CudaSequence::memory() const {
  std::vector<MemoryPart> parts;
  for (size_t i = 0; i < groups_.size(); ++i)
    for (const DevicePage& page : groups_[i].pages)
      if (page) parts.push_back({page.get(), memory_->groups[i].pool->page_bytes()});
  if (state_) parts.push_back({state_.get(), memory_->states->page_bytes()});
  for (const DevicePage& page : after_) parts.push_back({page.get(), memory_->states->page_bytes()});
  return parts;
}

// -- steps

// True: it is another page now.
bool CudaSequence::make_own(DevicePage& page, DevicePagePool& pool) const {
  if (page && page.use_count() == 1) return false;
  DevicePage own = pool.take();
  if (page) pool.copy(own, page, memory_->stream);
  page = std::move(own);
  return true;
}

void CudaSequence::begin_step(size_t count, bool goes_back) {
  const size_t end = pages_for(position() + count);
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<DevicePage>& pages = groups_[i].pages;
    pages.resize(end);
    for (size_t p = position() / kKvPage; p < end; ++p)
      if (make_own(pages[p], *memory_->groups[i].pool)) changed_ = std::min(changed_, p);
  }
  if (memory_->states) {
    const bool is_new = !state_;
    make_own(state_, *memory_->states);
    if (is_new)
      check_cuda(cudaMemsetAsync(state_.get(), 0, memory_->states->page_bytes(), memory_->stream),
                 "clearing a state");
    after_.clear();
    after_from_ = position() + 1;
    for (size_t i = 1; goes_back && count <= kMostBack + 1 && i < count; ++i)
      after_.push_back(memory_->states->take());
  }
  if (groups_.empty() || changed_ >= end) return;
  if (table_.size() == 0)
    table_ = DeviceBuffer(pages_for(capacity()) * groups_.size() * sizeof(std::byte*), "table of pages");
  std::vector<std::byte*> entries;
  for (size_t p = changed_; p < end; ++p)
    for (const Group& g : groups_) entries.push_back(g.pages[p].get());
  // From pageable memory: it is read before the call returns.
  check_cuda(cudaMemcpyAsync(table_.as<std::byte*>() + changed_ * groups_.size(), entries.data(),
                             entries.size() * sizeof(std::byte*), cudaMemcpyHostToDevice, memory_->stream),
             "writing a table of pages");
  changed_ = SIZE_MAX;
}

void CudaSequence::end_step(size_t count) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& g = groups_[i];
    const size_t visible = first_visible(*memory_->groups[i].layer, position() + count) / kKvPage;
    for (; g.n_released < std::min(visible, g.pages.size()); ++g.n_released) g.pages[g.n_released].reset();
  }
}

// -- going back

// A delta net's state is that of its last token, and those after tokens of a short step.
bool CudaSequence::can_cut_state(size_t position) const {
  if (position < loaded_at_) return false;
  if (memory_->states && (position < after_from_ || position - after_from_ >= after_.size())) return false;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const size_t first = first_visible(*memory_->groups[i].layer, position);
    if (first < position && first / kKvPage < groups_[i].n_released) return false;
  }
  return true;
}

size_t CudaSequence::removable() const {
  size_t most = memory_->states ? kMostBack + 1 : SIZE_MAX;
  for (const SequenceMemory::Group& g : memory_->groups) {
    if (!g.layer->window) continue;
    // A page is given back once no later query can see it: the first that is seen now must stay.
    const size_t page = first_visible(*g.layer, position()) / kKvPage;
    most = std::min(most, (page + 1) * kKvPage - 1 + g.layer->window - 1 - position());
  }
  return most;
}

void CudaSequence::cut_group(Group& group, size_t position) {
  if (group.pages.size() > pages_for(position)) group.pages.resize(pages_for(position));
  group.n_released = std::min(group.n_released, position / kKvPage);
}

void CudaSequence::cut_state(size_t position) {
  for (Group& group : groups_) cut_group(group, position);
  if (!memory_->states) return;
  state_ = after_[position - after_from_];
  after_.resize(position - after_from_);
}

// -- saved states, layer by layer through host memory

uint64_t CudaSequence::state_bytes(Saved what) const {
  return saved_bytes(memory_->model, position(), memory_->type, 0, what);
}

void CudaSequence::save_kv(StateSink& sink, size_t at) const {
  const ModelConfig& m = memory_->model;
  const SequenceMemory::Layer& layer = memory_->layers[at];
  const size_t first = first_visible(m.layers[at], position()), page = first / kKvPage;
  std::vector<std::byte> host((pages_for(position()) - page) * layer.bytes);
  for (size_t i = 0; i * layer.bytes < host.size(); ++i)
    check_cuda(cudaMemcpyAsync(host.data() + i * layer.bytes,
                               groups_[layer.kv.group].pages[page + i].get() + layer.first, layer.bytes,
                               cudaMemcpyDeviceToHost, memory_->stream),
               "reading a KV cache");
  check_cuda(cudaStreamSynchronize(memory_->stream), "reading a KV cache");
  for_each_row(kv_shape(m, m.layers[at]), memory_->type, layer, host.data(), first, position(),
               [&](std::span<const std::byte> rows) { sink.write(rows); });
}

// Rows that are not in the state become zeros: tiles that a query sees in part are multiplied as a whole.
void CudaSequence::load_kv(StateSource& source, size_t at, size_t position) {
  const ModelConfig& m = memory_->model;
  const SequenceMemory::Layer& layer = memory_->layers[at];
  const size_t first = first_visible(m.layers[at], position), page = first / kKvPage;
  std::vector<std::byte> host((pages_for(position) - page) * layer.bytes);
  for_each_row(kv_shape(m, m.layers[at]), memory_->type, layer, host.data(), first, position,
               [&](std::span<std::byte> rows) { source.read(rows); });
  for (size_t i = 0; i * layer.bytes < host.size(); ++i)
    check_cuda(
        cudaMemcpyAsync(groups_[layer.kv.group].pages[page + i].get() + layer.first,
                        host.data() + i * layer.bytes, layer.bytes, cudaMemcpyHostToDevice, memory_->stream),
        "writing a KV cache");
  check_cuda(cudaStreamSynchronize(memory_->stream), "writing a KV cache");
}

void CudaSequence::save_state(StateSink& sink, Saved what) const {
  const ModelConfig& m = memory_->model;
  std::vector<float> state(memory_->states ? memory_->states->page_bytes() / sizeof(float) : 0);
  if (state_) {
    check_cuda(cudaMemcpyAsync(state.data(), state_.get(), state.size() * sizeof(float),
                               cudaMemcpyDeviceToHost, memory_->stream),
               "reading a state");
    check_cuda(cudaStreamSynchronize(memory_->stream), "reading a state");
  }
  for (size_t i = 0; i < m.n_layers(); ++i) {
    if (!is_saved(m.layers[i], what)) continue;
    if (m.layers[i].mixer == Mixer::DeltaNet) {
      const uint32_t block = 0;
      sink.write(std::as_bytes(std::span(&block, 1)));
      sink.write(std::as_bytes(conv_of(m.delta, memory_->layers[i], state.data())));
      sink.write(std::as_bytes(state_of(m.delta, memory_->layers[i], state.data())));
    } else {
      save_kv(sink, i);
    }
  }
}

void CudaSequence::load_state(StateSource& source, size_t position, Saved what) {
  const ModelConfig& m = memory_->model;
  bool needs_all = memory_->states != nullptr;  // to go back
  for (size_t i = 0; i < groups_.size(); ++i) {
    const LayerConfig& layer = *memory_->groups[i].layer;
    needs_all = needs_all || layer.window > 0;
    if (!is_saved(layer, what)) {  // of a longer text
      cut_group(groups_[i], position);
      continue;
    }
    const size_t first = first_visible(layer, position) / kKvPage, end = pages_for(position);
    groups_[i] = {std::vector<DevicePage>(end), first};
    for (size_t p = first; p < end; ++p) groups_[i].pages[p] = memory_->groups[i].pool->take();
  }
  changed_ = 0;
  after_.clear();
  std::vector<float> state(memory_->states ? memory_->states->page_bytes() / sizeof(float) : 0);
  for (size_t i = 0; i < m.n_layers(); ++i) {
    if (!is_saved(m.layers[i], what)) continue;
    if (m.layers[i].mixer == Mixer::DeltaNet)
      load_delta(m.delta, conv_of(m.delta, memory_->layers[i], state.data()),
                 state_of(m.delta, memory_->layers[i], state.data()), position, source);
    else
      load_kv(source, i, position);
  }
  if (memory_->states) {
    state_ = memory_->states->take();
    check_cuda(cudaMemcpyAsync(state_.get(), state.data(), state.size() * sizeof(float),
                               cudaMemcpyHostToDevice, memory_->stream),
               "writing a state");
    check_cuda(cudaStreamSynchronize(memory_->stream), "writing a state");
  }
  loaded_at_ = needs_all ? position : 0;
}

}  // namespace moeflux::cuda
