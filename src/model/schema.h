// Which tensors a package of a given model has, with which shapes. The converter writes exactly these, the
// loader refuses anything missing, surplus or of another shape. Names are those of the published Qwen files
// without prefix and ".weight"; families with other names are brought to these (docs/FORMAT.md lists them).
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace moeflux {

enum class TensorClass : uint8_t {
  Embedding,
  Norm,
  Attention,
  Router,
  SharedExpert,
  Dense,
  Expert,
  Head,
  Mtp
};
inline constexpr size_t kTensorClasses = 9;
const char* to_string(TensorClass cls);

struct TensorSpec {
  std::string name;
  TensorClass cls;
  uint64_t rows, cols;  // a vector has one row
  bool matrix;          // stored in tiles; otherwise plain float32
  bool may_narrow;      // options may quantise it
};

struct SchemaOptions {
  bool mla_key_transposed =
      true;          // k_up_t [heads * kv_rank, nope_dim] in place of k_up [heads * nope_dim, kv_rank]
  bool mtp = false;  // with the multi-token-prediction layer (families that publish one)
};

// Everything outside the routed experts.
std::vector<TensorSpec> resident_schema(const ModelConfig& model, const SchemaOptions& options);

// The parts of one expert's record, in order: gate, up, down, then their biases where the family has them.
std::vector<TensorSpec> expert_schema(const ModelConfig& model);

// Layers with routed experts, ascending; the multi-token-prediction layer counts as layer n_layers.
std::vector<uint64_t> expert_layers(const ModelConfig& model, const SchemaOptions& options);

// "layers.7." or, for the multi-token-prediction layer, "mtp.layers.0."
std::string layer_prefix(const ModelConfig& model, uint64_t layer);

}  // namespace moeflux
