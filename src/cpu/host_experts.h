// HostExperts on the cpu backend's own products and threads.
#pragma once

#include "cpu/cpu_backend.h"
#include "model/host_experts.h"

namespace moeflux {

std::unique_ptr<HostExperts> make_host_experts(const ModelConfig& model, const CpuOptions& options);

}  // namespace moeflux
