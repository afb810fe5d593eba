// States of the cpu backend to and from the layout that all backends share: rows of keys instead of tiles,
// and tokens of a delta net's block instead of columns.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cpu/cpu_sequence.h"

namespace moeflux {
namespace {

// Rows [first, first + n) of one page.
struct PageRows {
  std::byte* page;
  size_t first, n;
};

template <class Fn>
void for_each_page(const KvHead& kv, size_t first, size_t end, Fn fn) {
  for (size_t at = first; at < end;) {
    const size_t n = std::min(end - at, kKvBlock - at % kKvBlock);
    fn(PageRows{kv.pages[at / kKvBlock], at % kKvBlock, n});
    at += n;
  }
}

// Keys between tiles and rows [n][key_dim] of values of T's size.
template <class T>
void keys_to_rows(const KvHead& kv, const PageRows& p, std::byte* out) {
  const auto* tiles = reinterpret_cast<const T*>(p.page + kv.keys);
  auto* rows = reinterpret_cast<T*>(out);
  for (size_t r = 0; r < p.n; ++r)
    for (size_t d = 0, at = p.first + r; d < kv.key_dim; ++d)
      rows[r * kv.key_dim + d] = tiles[(at / 16 * kv.key_dim + d) * 16 + at % 16];
}
template <class T>
void rows_to_keys(const KvHead& kv, const PageRows& p, const std::byte* in) {
  auto* tiles = reinterpret_cast<T*>(p.page + kv.keys);
  const auto* rows = reinterpret_cast<const T*>(in);
  for (size_t r = 0; r < p.n; ++r)
    for (size_t d = 0, at = p.first + r; d < kv.key_dim; ++d)
      tiles[(at / 16 * kv.key_dim + d) * 16 + at % 16] = rows[r * kv.key_dim + d];
}

// Calls fn(span) for the rows of what follows the keys, in order.
template <class Fn>
void for_each_other_part(const KvHead& kv, size_t first, size_t end, Fn fn) {
  const auto rows = [&](size_t offset, size_t row_bytes) {
    for_each_page(kv, first, end, [&](const PageRows& p) {
      fn(std::span(p.page + offset + p.first * row_bytes, p.n * row_bytes));
    });
  };
  if (kv.own_values) rows(kv.values, kv.value_dim * kv_value_bytes(kv.type));
  if (kv.type == KvType::Q8) rows(kv.key_scale, sizeof(float));
  if (kv.type == KvType::Q8 && kv.own_values) rows(kv.value_scale, sizeof(float));
}

std::span<std::byte> bytes_of(float* x, size_t n) { return std::as_writable_bytes(std::span(x, n)); }

}  // namespace

uint64_t CpuSequence::state_bytes(Saved what) const {
  return saved_bytes(model_, position(), type_, position() % kDeltaBlock, what);
}

void CpuSequence::save_state(StateSink& sink, Saved what) const {
  for (size_t i = 0; i < kv_.size(); ++i) {
    const LayerConfig& layer = model_.layers[i];
    if (!is_saved(layer, what)) continue;
    layer.mixer == Mixer::DeltaNet ? save_delta(sink, i) : save_kv(sink, i);
  }
}

void CpuSequence::load_state(StateSource& source, size_t position, Saved what) {
  if (n_delta_) {  // of a copy: all of it is replaced
    state_.reset(), block_.reset(), conv_.reset();
    write_delta(kDeltaBlock);
  }
  bool needs_all = false;  // to go back
  for (size_t i = 0; i < kv_.size(); ++i) {
    const LayerConfig& layer = model_.layers[i];
    needs_all = needs_all || layer.mixer == Mixer::DeltaNet || layer.window > 0;
    if (!is_saved(layer, what))
      cut_layer(kv_[i], position);
    else if (layer.mixer == Mixer::DeltaNet)
      load_delta(source, i, position);
    else
      load_kv(source, i, position);
  }
  loaded_at_ = needs_all ? position : 0;
}

void CpuSequence::save_kv(StateSink& sink, uint64_t layer) const {
  const size_t first = first_visible(model_.layers[layer], position());
  for (size_t h = 0; h < kv_shape(model_, model_.layers[layer]).heads; ++h) {
    const KvHead head = kv(layer, h);
    std::vector<std::byte> rows(kKvBlock * head.key_dim * kv_value_bytes(type_));
    for_each_page(head, first, position(), [&](const PageRows& p) {
      const auto to_rows = type_ == KvType::F32    ? keys_to_rows<uint32_t>
                           : type_ == KvType::Bf16 ? keys_to_rows<uint16_t>
                                                   : keys_to_rows<uint8_t>;
      to_rows(head, p, rows.data());
      sink.write(std::span(rows).first(p.n * head.key_dim * kv_value_bytes(type_)));
    });
    for_each_other_part(head, first, position(), [&](std::span<std::byte> part) { sink.write(part); });
  }
}

void CpuSequence::load_kv(StateSource& source, uint64_t layer, size_t position) {
  const size_t first = first_visible(model_.layers[layer], position);
  kv_[layer] = {};
  if (first < position) write_kv(layer, first, position - first);
  kv_[layer].n_released = std::min(first / kKvBlock, kv_[layer].pages.size());
  for (size_t h = 0; h < kv_shape(model_, model_.layers[layer]).heads; ++h) {
    const KvHead head = kv(layer, h);
    std::vector<std::byte> rows(kKvBlock * head.key_dim * kv_value_bytes(type_));
    for_each_page(head, first, position, [&](const PageRows& p) {
      source.read(std::span(rows).first(p.n * head.key_dim * kv_value_bytes(type_)));
      const auto to_tiles = type_ == KvType::F32    ? rows_to_keys<uint32_t>
                            : type_ == KvType::Bf16 ? rows_to_keys<uint16_t>
                                                    : rows_to_keys<uint8_t>;
      to_tiles(head, p, rows.data());
    });
    for_each_other_part(head, first, position, [&](std::span<std::byte> part) { source.read(part); });
  }
}

void CpuSequence::save_delta(StateSink& sink, uint64_t layer) const {
  const DeltaConfig& d = model_.delta;
  const auto n = static_cast<uint32_t>(position() % kDeltaBlock);
  sink.write(std::as_bytes(std::span(&n, 1)));
  if (position() == 0) {  // has no memory yet
    const size_t floats = (d.conv_width - 1) * d.conv_channels() + d.n_value_heads * d.key_dim * d.value_dim;
    return sink.write(std::vector<std::byte>(floats * sizeof(float)));
  }
  for (size_t j = 1; j < d.conv_width; ++j)
    sink.write(bytes_of(conv(layer, position() + conv_rows() + j - d.conv_width), d.conv_channels()));
  std::vector<float> keys(n * d.key_dim);
  for (size_t h = 0; h < d.n_value_heads; ++h) {
    const DeltaHead head = delta(layer, h);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = head.keys[i % d.key_dim * kDeltaBlock + i / d.key_dim];
    sink.write(bytes_of(head.state, d.key_dim * d.value_dim));
    sink.write(bytes_of(keys.data(), keys.size()));
    sink.write(bytes_of(head.values, n * d.value_dim));
    sink.write(bytes_of(head.decay, n));
  }
}

void CpuSequence::load_delta(StateSource& source, uint64_t layer, size_t position) {
  const DeltaConfig& d = model_.delta;
  // A state may have its block's tokens in itself; those that are missing here then count as tokens without
  // effect, which is what zeros are.
  uint32_t n = 0;
  source.read(std::as_writable_bytes(std::span(&n, 1)));
  if (n != 0 && n != position % kDeltaBlock)
    fail(Errc::Corrupt, "a state at position {} with {} tokens of a block", position, n);
  for (size_t j = 1; j < d.conv_width; ++j)
    source.read(bytes_of(conv(layer, position + conv_rows() + j - d.conv_width), d.conv_channels()));
  std::vector<float> keys(n * d.key_dim);
  for (size_t h = 0; h < d.n_value_heads; ++h) {
    const DeltaHead head = delta(layer, h);
    source.read(bytes_of(head.state, d.key_dim * d.value_dim));
    source.read(bytes_of(keys.data(), keys.size()));
    for (size_t i = 0; i < keys.size(); ++i) head.keys[i % d.key_dim * kDeltaBlock + i / d.key_dim] = keys[i];
    source.read(bytes_of(head.values, n * d.value_dim));
    source.read(bytes_of(head.decay, n));
  }
}

}  // namespace moeflux
