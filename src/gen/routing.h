// Routes from a stated distribution instead of the model's own choice: what a cache and a drive make of even,
// skewed or recorded routing can then be measured on any weights, random ones included. A draw happens where
// the model's own choice would become known, and no earlier, so that nothing can look ahead. The weights of
// the picks stay the model's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "model/backend.h"

namespace moeflux {

class RouteSource {
 public:
  virtual ~RouteSource() = default;
  // The experts of the next `tokens` tokens of a layer: `ids` is [tokens, top_k], distinct within a token.
  virtual void draw(uint64_t layer, size_t tokens, std::span<uint32_t> ids) = 0;
};

struct RouteShape {
  uint64_t n_layers = 0, n_experts = 0, top_k = 0;
};

struct RoutingSpec {
  enum class Kind : uint8_t { Model, Uniform, Zipf, Log };
  Kind kind = Kind::Model;
  double exponent = 0;  // Zipf: the expert of rank r = 1, 2, ... is drawn with a weight of r^-exponent
  std::filesystem::path log = {};  // Log: the recording
};

// model, uniform, zipf:S or log:FILE; throws Error{InvalidArgument}.
RoutingSpec parse_routing(std::string_view text);
std::string to_string(const RoutingSpec& spec);

// Null where the model routes itself. A layer's tokens get the same routes however they are cut into steps;
// which experts are the popular ones differs from layer to layer and from seed to seed.
std::unique_ptr<RouteSource> make_route_source(const RoutingSpec& spec, const RouteShape& shape,
                                               uint64_t seed);

// Replaces the router's choice by the source's. The source outlives the tap.
Tap route_tap(RouteSource& source);

}  // namespace moeflux
