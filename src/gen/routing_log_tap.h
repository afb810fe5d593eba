// Recording which experts a model chooses, while it runs: the tap between an engine and a log of routes.
#pragma once

#include "gen/engine.h"
#include "store/routing_log.h"

namespace moeflux {

// What a log says of a model at its start. Throws Error{InvalidArgument} for a model without routed experts.
RoutingShape routing_shape(const ModelConfig& config, const Manifest& manifest);

// Sees routes alone and changes nothing. The log must live as long as the tap.
Tap routing_log_tap(RoutingLogWriter& log);

}  // namespace moeflux
