// KV cache and recurrent state of one sequence in device memory; a copy shares nothing.
#pragma once

#include <vector>

#include "cuda/device.h"
#include "cuda/step_info.h"
#include "model/backend.h"

namespace moeflux::cuda {

class CudaSequence : public Sequence {
 public:
  // chunk: how many tokens a layer with a window may append before the first of them is attended to.
  CudaSequence(const ModelConfig& model, size_t capacity, KvType type, size_t chunk, cudaStream_t stream);
  std::vector<MemoryPart> memory() const override { return {{memory_.as<>(), memory_.size()}}; }
  std::unique_ptr<Sequence> copy() const override;
  size_t removable() const override;
  uint64_t state_bytes(Saved what) const override;

  const LayerCache* layers() const { return table_.as<LayerCache>(); }  // in device memory
  size_t rows(uint64_t layer) const { return rows_[layer]; }

 private:
  CudaSequence(const CudaSequence& other);
  void write_table();
  bool can_cut_state(size_t position) const override;
  void save_state(StateSink& sink, Saved what) const override;
  void load_state(StateSource& source, size_t position, Saved what) override;

  const ModelConfig& model_;
  const KvType type_;
  const size_t chunk_;
  size_t loaded_at_ = 0;  // a saved state holds only what later tokens need
  const cudaStream_t stream_;
  DeviceBuffer memory_, table_;
  std::vector<size_t> rows_;
};

// Bytes that such a sequence takes.
uint64_t cuda_sequence_bytes(const ModelConfig& model, size_t capacity, KvType type, size_t chunk);

}  // namespace moeflux::cuda
