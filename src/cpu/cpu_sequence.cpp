#include "cpu/cpu_sequence.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"

namespace moeflux {
namespace {

// Where a head's parts lie in a page, in bytes.
struct HeadLayout {
  HeadLayout(const KvShape& s, KvType type)
      : keys(kKvBlock * s.key_dim * kv_value_bytes(type)),
        values(s.own_values ? kKvBlock * s.value_dim * kv_value_bytes(type) : 0),
        scales(type == KvType::Q8 ? kKvBlock * sizeof(float) : 0),
        total(keys + values + scales * (s.own_values ? 2 : 1)) {}
  size_t keys, values, scales, total;
};

const LayerConfig* attention_layer(const ModelConfig& model) {
  const auto it =
      std::ranges::find_if(model.layers, [](const LayerConfig& l) { return l.mixer != Mixer::DeltaNet; });
  return it == model.layers.end() ? nullptr : &*it;
}

size_t state_floats(const DeltaConfig& d) { return d.key_dim * d.value_dim; }
size_t block_floats(const DeltaConfig& d) { return kDeltaBlock * (d.key_dim + d.value_dim + 1); }

// Memory that may be written, or, if it is only read, that is there.
void make_own(std::shared_ptr<AlignedBuffer>& memory, size_t n_floats, bool write) {
  if (memory && (!write || memory.use_count() == 1)) return;
  auto own = std::make_shared<AlignedBuffer>(n_floats * sizeof(float));
  if (memory) std::memcpy(own->data(), memory->data(), own->size());
  memory = std::move(own);
}

}  // namespace

CpuSequence::CpuSequence(const ModelConfig& model, size_t capacity, KvType type,
                         std::shared_ptr<KvPagePool> pages)
    : Sequence(capacity), model_(model), type_(type), pool_(std::move(pages)), kv_(model.n_layers()) {
  for (const LayerConfig& layer : model.layers) {
    delta_index_.push_back(n_delta_);
    n_delta_ += layer.mixer == Mixer::DeltaNet;
  }
}

// At a block's start there is nothing in the block that the copy would need.
CpuSequence::CpuSequence(const CpuSequence& o)
    : Sequence(o),
      model_(o.model_),
      type_(o.type_),
      pool_(o.pool_),
      kv_(o.kv_),
      delta_index_(o.delta_index_),
      n_delta_(o.n_delta_),
      loaded_at_(o.loaded_at_),
      state_(o.state_),
      block_(o.position() % kDeltaBlock ? o.block_ : nullptr),
      conv_(o.conv_) {}

std::unique_ptr<Sequence> CpuSequence::copy() const {
  return std::unique_ptr<Sequence>(new CpuSequence(*this));
}

size_t CpuSequence::page_bytes(const ModelConfig& model, KvType type) {
  const LayerConfig* layer = attention_layer(model);  // all have the same shape
  if (!layer) return 0;
  const KvShape shape = kv_shape(model, *layer);
  return checked_mul(shape.heads, HeadLayout(shape, type).total, "KV cache");
}

std::vector<MemoryPart> CpuSequence::memory() const {
  std::vector<MemoryPart> parts;
  for (const KvLayer& layer : kv_)
    for (const KvPage& page : layer.pages)
      if (page) parts.push_back({page.data(), pool_->page_bytes()});
  for (const Memory* m : {&state_, &block_, &conv_})
    if (*m) parts.push_back({m->get(), (*m)->size()});
  return parts;
}

// -- copies inside a step

void CpuSequence::begin_step(size_t count) {
  static_assert(kWatchStep % kKvBlock == 0 && kWatchStep % kDeltaBlock == 0);  // whole pages, folded blocks
  inside_.clear();
  copied_at_.clear();
  for (const size_t p : watched()) {
    if (p >= position() + count) break;
    copied_at_.push_back(p);
    auto copy = std::make_unique<CpuSequence>(model_, capacity(), type_, pool_);
    copy->loaded_at_ = loaded_at_;
    if (n_delta_) {
      copy->write_delta(0);
      copy->block_.reset();
    }
    inside_.emplace(p, std::move(copy));
  }
}

void CpuSequence::copy_kv(uint64_t layer, size_t position) {
  KvLayer& copy = inside_copy(position).kv_[layer];
  const KvLayer& l = kv_[layer];
  const auto n = static_cast<ptrdiff_t>(position / kKvBlock);
  copy.pages.assign(l.pages.begin(), l.pages.begin() + n);
  copy.data.assign(l.data.begin(), l.data.begin() + n);
  copy.n_released = l.n_released;
}

std::map<size_t, std::unique_ptr<Sequence>> CpuSequence::take_inside_copies() {
  std::map<size_t, std::unique_ptr<Sequence>> copies;
  for (auto& [position, copy] : inside_) copies.emplace(position, std::move(copy));
  inside_.clear();
  copied_at_.clear();
  return copies;
}

// -- attention

void CpuSequence::set_page(KvLayer& layer, size_t block, KvPage page) {
  layer.data[block] = page.data();
  layer.pages[block] = std::move(page);
}

void CpuSequence::write_kv(uint64_t layer, size_t first, size_t count) {
  KvLayer& l = kv_[layer];
  const size_t end = (first + count + kKvBlock - 1) / kKvBlock;
  if (l.pages.size() < end) l.pages.resize(end), l.data.resize(end);
  for (size_t block = first / kKvBlock; block < end; ++block) {
    const KvPage& old = l.pages[block];
    if (old && !old.shared()) continue;
    KvPage page = pool_->take();
    if (old) {
      std::memcpy(page.data(), old.data(), pool_->page_bytes());
      clear_rows(page.data(), first % kKvBlock);  // others may have written there
    }
    set_page(l, block, std::move(page));
  }
}

void CpuSequence::release_kv(uint64_t layer, size_t position) {
  KvLayer& l = kv_[layer];
  const size_t visible = first_visible(model_.layers[layer], position) / kKvBlock;
  for (; l.n_released < std::min(visible, l.pages.size()); ++l.n_released) {
    l.pages[l.n_released] = {};
    l.data[l.n_released] = nullptr;
  }
}

KvHead CpuSequence::kv(uint64_t layer, size_t head) const {
  const KvShape shape = kv_shape(model_, model_.layers[layer]);
  const HeadLayout part(shape, type_);
  const size_t keys = head * part.total, values = keys + part.keys, scales = values + part.values;
  return {type_, shape.key_dim, shape.value_dim, shape.own_values,    kv_[layer].data.data(),
          keys,  values,        scales,          scales + part.scales};
}

// Attention multiplies rows that a query does not see by zero: they must be numbers, which those of tokens
// that were cut off need not be.
void CpuSequence::clear_rows(std::byte* page, size_t first) const {
  const KvShape shape = kv_shape(model_, *attention_layer(model_));
  const HeadLayout part(shape, type_);
  const size_t value = kv_value_bytes(type_), tile = 16 * value;
  for (size_t head = 0; head < shape.heads; ++head, page += part.total) {
    for (size_t t = first / 16; t < kKvBlock / 16; ++t) {
      const size_t from = t == first / 16 ? first % 16 * value : 0;
      for (size_t d = 0; d < shape.key_dim; ++d)
        std::memset(page + (t * shape.key_dim + d) * tile + from, 0, tile - from);
    }
    const size_t row = shape.value_dim * value;
    if (shape.own_values) std::memset(page + part.keys + first * row, 0, (kKvBlock - first) * row);
    for (size_t at = part.keys + part.values; at < part.total; at += part.scales)
      std::memset(page + at + first * sizeof(float), 0, (kKvBlock - first) * sizeof(float));
  }
}

// -- delta net

void CpuSequence::write_delta(size_t count) {
  const DeltaConfig& d = model_.delta;
  const size_t heads = n_delta_ * d.n_value_heads;
  make_own(state_, heads * state_floats(d), position() % kDeltaBlock + count >= kDeltaBlock);
  make_own(block_, heads * block_floats(d), true);
  make_own(conv_, n_delta_ * conv_rows() * d.conv_channels(), true);
}

DeltaHead CpuSequence::delta(uint64_t layer, size_t head) const {
  const DeltaConfig& d = model_.delta;
  const size_t at = delta_index_[layer] * d.n_value_heads + head;
  DeltaHead h{d.key_dim, d.value_dim, state_->floats().data() + at * state_floats(d),
              nullptr,   nullptr,     nullptr};
  if (!block_) return h;
  h.keys = block_->floats().data() + at * block_floats(d);
  h.values = h.keys + kDeltaBlock * d.key_dim;
  h.decay = h.values + kDeltaBlock * d.value_dim;
  return h;
}

float* CpuSequence::conv(uint64_t layer, size_t position) const {
  const size_t row = delta_index_[layer] * conv_rows() + position % conv_rows();
  return conv_->floats().data() + row * model_.delta.conv_channels();
}

// -- going back

bool CpuSequence::can_cut_state(size_t p) const {
  if (p < loaded_at_) return false;
  // The state is that of the block's start, and the convolution's inputs must still be there.
  if (n_delta_ && (p < position() / kDeltaBlock * kDeltaBlock || furthest() - p > kConvSlack)) return false;
  for (size_t i = 0; i < kv_.size(); ++i) {
    const size_t first = first_visible(model_.layers[i], p);
    if (first < p && first / kKvBlock < kv_[i].n_released) return false;
  }
  return true;
}

size_t CpuSequence::removable() const {
  size_t most = SIZE_MAX;
  if (n_delta_) most = std::min(kConvSlack, kDeltaBlock - 1 - position() % kDeltaBlock);
  for (const LayerConfig& layer : model_.layers) {
    if (layer.mixer == Mixer::DeltaNet || !layer.window) continue;
    // A page is given back once no later query can see it: the first that is seen now must stay.
    const size_t page = first_visible(layer, position()) / kKvBlock;
    most = std::min(most, (page + 1) * kKvBlock - 1 + layer.window - 1 - position());
  }
  return most;
}

void CpuSequence::cut_layer(KvLayer& l, size_t p) const {
  const size_t blocks = (p + kKvBlock - 1) / kKvBlock;
  if (l.pages.size() > blocks) l.pages.resize(blocks), l.data.resize(blocks);
  l.n_released = std::min(l.n_released, p / kKvBlock);
  if (p % kKvBlock == 0 || l.pages.size() < blocks) return;
  const KvPage& last = l.pages.back();
  if (last && !last.shared()) clear_rows(last.data(), p % kKvBlock);
}

void CpuSequence::cut_state(size_t p) {
  for (KvLayer& l : kv_) cut_layer(l, p);
}

}  // namespace moeflux
