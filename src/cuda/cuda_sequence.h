// KV cache and recurrent state of one sequence in device memory.
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
  uint64_t bytes() const override { return memory_.size(); }

  const LayerCache* layers() const { return table_.as<LayerCache>(); }  // in device memory
  size_t rows(uint64_t layer) const { return rows_[layer]; }

 private:
  DeviceBuffer memory_, table_;
  std::vector<size_t> rows_;
};

// Bytes that such a sequence takes.
uint64_t cuda_sequence_bytes(const ModelConfig& model, size_t capacity, KvType type, size_t chunk);

}  // namespace moeflux::cuda
