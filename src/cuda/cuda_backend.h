// cuda: the backend that computes on a GPU. This header is the seam: nothing outside this folder sees CUDA.
// A program that was built without CUDA has the same functions (absent.cpp), which say so.
#pragma once

#include "model/backend.h"
#include "model/host_experts.h"

namespace moeflux {

struct CudaDevice {
  std::string name;
  uint64_t total_bytes = 0, free_bytes = 0;
};

// The device that a backend would use. Throws Error{Device | Unsupported} with the reason where there is
// none.
CudaDevice cuda_device();
bool built_with_cuda();
// Bytes per second that its memory reads and writes, measured; takes about 2 GiB of it for a moment.
double measure_cuda_memory();

struct CudaOptions {
  Precision precision = Precision::Fast;
  KvType kv = KvType::Bf16;
  uint64_t slot_bytes = 0;  // of expert slots on the device
  std::string policy = policy_names().front();
};

// `resident` is the memory that the weights' views point into: it is copied to the device. `host`, where
// there is one, computes a part of the experts that the device lacks.
std::unique_ptr<Backend> make_cuda_backend(const ModelConfig& model, const ModelWeights& weights,
                                           std::span<const std::byte> resident, const Manifest& manifest,
                                           const CudaOptions& options, std::unique_ptr<HostExperts> host);

}  // namespace moeflux
