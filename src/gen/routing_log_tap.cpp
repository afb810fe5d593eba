#include "gen/routing_log_tap.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {

RoutingShape routing_shape(const ModelConfig& config, const Manifest& manifest) {
  RoutingShape shape;
  for (uint32_t i = 0; i < config.n_layers(); ++i)
    if (config.layers[i].sparse) shape.layers.push_back(i);
  if (shape.layers.empty())
    fail(Errc::InvalidArgument, "the model has no routed experts: there are no routes to log");
  shape.n_experts = static_cast<uint32_t>(config.moe.n_experts);
  shape.top_k = static_cast<uint32_t>(config.moe.top_k);
  for (const ExpertLayer& l : manifest.layers)
    shape.record_bytes = std::max(shape.record_bytes, l.record_bytes);
  return shape;
}

Tap routing_log_tap(RoutingLogWriter& log) {
  return {.call =
              [&log, ids = std::vector<uint32_t>()](const TapTensor& t) mutable {
                ids.clear();
                for (const float id : t.values) ids.push_back(static_cast<uint32_t>(id));
                log.add(static_cast<uint32_t>(t.layer), ids);
                return false;
              },
          .only_routes = true,
          .late = true};
}

}  // namespace moeflux
