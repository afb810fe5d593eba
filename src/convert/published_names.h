// How published checkpoints name the tensors of a package, family by family: the one place that both finding
// them (source.h) and writing them (synth.h) go by.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/schema.h"

namespace moeflux {

// The published name of a package tensor, without the file's prefix and without ".weight".
std::string published_name(const ModelConfig& model, const std::string& name);

// "mlp." or "block_sparse_moe."
std::string published_moe_prefix(const ModelConfig& model);

// Whether a published tensor of this name ends in ".weight" (biases, A_log, dt_bias and sinks do not).
bool has_weight_suffix(const std::string& name);

// Names and shapes of a whole published checkpoint of this model.
std::map<std::string, std::vector<uint64_t>> published_tensors(const ModelConfig& model, const Json& config);

}  // namespace moeflux
