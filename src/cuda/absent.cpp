// The cuda backend of a program that was built without it.
#include "base/error.h"
#include "cuda/cuda_backend.h"

namespace moeflux {

bool built_with_cuda() { return false; }

CudaDevice cuda_device() {
  fail(Errc::Unsupported, "this program was built without CUDA (scripts/build cuda builds it with)");
}

double measure_cuda_memory() {
  cuda_device();
  return 0;
}

std::unique_ptr<Backend> make_cuda_backend(const ModelConfig&, const ModelWeights&,
                                           std::span<const std::byte>, const Manifest&, const CudaOptions&,
                                           std::unique_ptr<HostExperts>) {
  cuda_device();
  return nullptr;
}

}  // namespace moeflux
