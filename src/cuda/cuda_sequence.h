// KV cache and recurrent state of one sequence in device memory. Memory comes as the text grows, is shared
// with copies, and is made this sequence's own before a step writes to it (begin_step).
#pragma once

#include <vector>

#include "cuda/device_pages.h"
#include "cuda/step_info.h"
#include "model/backend.h"

namespace moeflux::cuda {

// How the sequences of a model lie in device memory, and where they get it: a page has kKvPage positions of
// all attention layers with the same window; what the delta nets remember is a page of its own kind.
struct SequenceMemory {
  SequenceMemory(const ModelConfig& m, KvType kv, cudaStream_t s);

  struct Layer {
    KvPlace kv{};                 // of an attention layer:
    size_t first = 0, bytes = 0;  // its part of a page
    size_t conv = 0, state = 0;   // of a delta net, floats from the start: [conv_width - 1][channels],
                                  // [head][key_dim][value_dim]
  };
  struct Group {
    const LayerConfig* layer;  // the first of them
    std::shared_ptr<DevicePagePool> pool;
  };

  const ModelConfig& model;
  const KvType type;
  const cudaStream_t stream;
  std::vector<Layer> layers;
  std::vector<Group> groups;
  std::shared_ptr<DevicePagePool> states;  // null: no delta nets
};

class CudaSequence : public Sequence {
 public:
  CudaSequence(std::shared_ptr<const SequenceMemory> memory, size_t capacity);
  std::vector<MemoryPart> memory() const override;
  std::unique_ptr<Sequence> copy() const override;
  size_t removable() const override;
  uint64_t state_bytes(Saved what) const override;

  // A step of `count` tokens is about to write: pages for it, this sequence's own, and a table of them.
  // goes_back: tokens of it may be taken back, so that states are kept for that, where it is short.
  void begin_step(size_t count, bool goes_back = true);
  // All kernels of the step are launched: gives back what no later query sees.
  void end_step(size_t count);
  // In device memory, as of begin_step. The tables of several steps lie at the same address.
  std::byte* const* pages() const { return table_.as<std::byte*>(); }
  float* state() const { return reinterpret_cast<float*>(state_.get()); }
  // Where the states after the step's first tokens go, where they are kept: after all but the last.
  std::span<const DevicePage> states_after() const { return after_; }

 private:
  struct Group {
    std::vector<DevicePage> pages;  // by position / kKvPage
    size_t n_released = 0;          // the first pages, which are gone
  };

  CudaSequence(const CudaSequence& other);
  bool make_own(DevicePage& page, DevicePagePool& pool) const;
  bool can_cut_state(size_t position) const override;
  void cut_state(size_t position) override;
  void save_state(StateSink& sink, Saved what) const override;
  void load_state(StateSource& source, size_t position, Saved what) override;
  void save_kv(StateSink& sink, size_t layer) const;
  void load_kv(StateSource& source, size_t layer, size_t position);
  void cut_group(Group& group, size_t position);

  const std::shared_ptr<const SequenceMemory> memory_;
  std::vector<Group> groups_;
  DevicePage state_;
  std::vector<DevicePage> after_;  // what state_ was at after_from_, after_from_ + 1, ..
  size_t after_from_ = 0;
  DeviceBuffer table_;    // made with the first step: a copy that only waits needs none
  size_t changed_ = 0;    // the first page that the table does not have yet
  size_t loaded_at_ = 0;  // a saved state holds only what later tokens need
};

}  // namespace moeflux::cuda
