// Synthetic models. write_synthetic_checkpoint follows a rule in which every value is a pure function of
// (seed, tensor name, index), so that a test needs no stored weights; write_synthetic_package fills a package
// of true size at disk speed with bytes that are incompressible and different for every expert, for
// benchmarks.
#pragma once

#include <map>
#include <optional>

#include "convert/convert.h"

namespace moeflux {

struct SynthOptions {
  std::optional<uint64_t> seed;    // default: tensors.json's, else 17
  std::optional<uint64_t> layers;  // cut the model to this many layers
  WidthOptions width;              // packages only
  bool mtp = false;                // packages only: with a multi-token-prediction layer
  size_t threads = 0;
};

// `source` has config.json, and tensors.json where names and shapes are given; otherwise the published
// layout.
void write_synthetic_checkpoint(const fs::path& source, const fs::path& out, const SynthOptions& options);
Manifest write_synthetic_package(const fs::path& source, const fs::path& out, const SynthOptions& options);

// Value i of a tensor by the rule, before rounding to bf16 (docs/FORMAT.md).
struct SyntheticRule {
  uint64_t seed = 17;
  bool zero_centred_norms = false, tied_embeddings = false;
  void fill(const std::string& name, const std::vector<uint64_t>& shape, uint64_t first,
            std::span<uint16_t> bf16) const;
};

}  // namespace moeflux
