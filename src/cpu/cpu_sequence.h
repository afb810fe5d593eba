// KV cache and recurrent state of one sequence as the kernels want them. Memory comes as the text grows, is
// shared with copies, and is made this sequence's own before a step writes to it (write_kv, write_delta).
#pragma once

#include "cpu/kv_pages.h"
#include "model/backend.h"

namespace moeflux {

class CpuSequence : public Sequence {
 public:
  CpuSequence(const ModelConfig& model, size_t capacity, KvType type, std::shared_ptr<KvPagePool> pages);
  // Bytes of a page: kKvBlock positions of all key/value heads of a layer.
  static size_t page_bytes(const ModelConfig& model, KvType type);

  std::vector<MemoryPart> memory() const override;
  std::unique_ptr<Sequence> copy() const override;
  size_t removable() const override;
  uint64_t state_bytes(Saved what) const override;

  // A step of `count` tokens begins.
  void begin_step(size_t count);
  bool copies_inside_steps() const override { return true; }
  // The positions inside the step at which it is copied, and an attention layer's or a delta net's part of
  // that copy, once the layer has come there.
  std::span<const size_t> copied_at() const { return copied_at_; }
  void copy_kv(uint64_t layer, size_t position);
  CpuSequence& inside_copy(size_t position) { return *inside_.at(position); }

  // Positions [first, first + count) of an attention layer are about to be written.
  void write_kv(uint64_t layer, size_t first, size_t count);
  // The next query of this layer is at `position`: gives back what its window does not reach.
  void release_kv(uint64_t layer, size_t position);
  KvHead kv(uint64_t layer, size_t head) const;

  // The next `count` tokens are about to change the delta-net layers.
  void write_delta(size_t count);
  DeltaHead delta(uint64_t layer,
                  size_t head) const;  // without a block at its start, where nothing was written
  // Where the convolution's input of a position is kept, [channels]: of the last conv_rows() positions.
  float* conv(uint64_t layer, size_t position) const;
  size_t conv_rows() const { return conv_history(model_); }

 private:
  struct KvLayer {
    std::vector<KvPage> pages;     // by position / kKvBlock
    std::vector<std::byte*> data;  // their memory, for the kernels
    size_t n_released = 0;         // the first pages, which are gone
  };
  // Shared by copies until one of them writes; null: all zero.
  using Memory = std::shared_ptr<AlignedBuffer>;

  CpuSequence(const CpuSequence& other);
  std::map<size_t, std::unique_ptr<Sequence>> take_inside_copies() override;
  bool can_cut_state(size_t position) const override;
  void cut_state(size_t position) override;
  void save_state(StateSink& sink, Saved what) const override;
  void load_state(StateSource& source, size_t position, Saved what) override;
  void cut_layer(KvLayer& layer, size_t position) const;
  void save_kv(StateSink& sink, uint64_t layer) const;
  void load_kv(StateSource& source, uint64_t layer, size_t position);
  void save_delta(StateSink& sink, uint64_t layer) const;
  void load_delta(StateSource& source, uint64_t layer, size_t position);
  void set_page(KvLayer& layer, size_t block, KvPage page);
  void clear_rows(std::byte* page, size_t first) const;

  const ModelConfig& model_;
  const KvType type_;
  const std::shared_ptr<KvPagePool> pool_;  // the backend's; outlives it where a sequence does
  std::vector<KvLayer> kv_;                 // of every layer; empty for delta nets
  std::vector<size_t> delta_index_;         // of every layer: which of the delta nets it is
  size_t n_delta_ = 0;
  // A saved state holds only what later tokens need: one that was loaded cannot go back.
  size_t loaded_at_ = 0;
  Memory state_;  // [delta layer][head][key_dim][value_dim]: written when a block ends
  Memory block_;  // [delta layer][head]: the block's tokens so far
  Memory conv_;   // [delta layer][conv_rows][channels]: position p is at p % conv_rows
  // Copies of the step under way.
  std::vector<size_t> copied_at_;
  std::map<size_t, std::unique_ptr<CpuSequence>> inside_;
};

}  // namespace moeflux
