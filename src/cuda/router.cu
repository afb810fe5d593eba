#include "cuda/overlap.cuh"
#include "cuda/router.cuh"
#include "cuda/router.h"

namespace moeflux::cuda {
namespace {

__global__ void route_kernel(DeviceRule rule, const float* logits, uint32_t* ids, float* weights) {
  extern __shared__ __align__(16) float room[];
  wait_for_previous();
  let_next_begin();
  const size_t t = blockIdx.x;
  route_token(rule, logits + t * rule.n_experts, room, ids + t * rule.top_k, weights + t * rule.top_k,
              [](unsigned, uint32_t) {});
}

}  // namespace

void route(const RouterRule& rule, size_t n_experts, const float* logits, size_t n, uint32_t* ids,
           float* weights, cudaStream_t stream) {
  launch_overlapped("route", route_kernel, static_cast<unsigned>(n), kRouteThreads,
                    route_room(n_experts, rule.n_groups, rule.top_k) * sizeof(float), stream,
                    device_rule(rule, n_experts), logits, ids, weights);
}

}  // namespace moeflux::cuda
