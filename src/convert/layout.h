// What a package will contain before any of it is written: formats, sizes and places of all tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/schema.h"
#include "package/manifest.h"

namespace moeflux {

enum class Width : uint8_t { Q4, Q8, Bf16, Mxfp4, Keep };
Width width_from_string(const std::string& text);
const char* to_string(Width width);

struct WidthOptions {
  Width experts = Width::Q4, resident = Width::Q8;
  uint16_t group = 64;
};

// The format a matrix gets. `source` is what it is stored in (and what Keep means). Sources that are as
// narrow as asked for already are kept; a width that the group does not divide becomes bf16.
MatrixFormat choose_format(const TensorSpec& spec, const MatrixFormat& source, Width width, uint16_t group);

struct PackageLayout {
  Manifest manifest;            // checksums still zero
  std::string resident_header;  // of resident.safetensors
  uint64_t resident_file_bytes = 0;
  std::map<std::string, uint64_t> stays_bf16;  // matrices that no group divides, and how many of each

  // Appends a tensor; finish() then gives every tensor its place in the file.
  void add_resident(const TensorSpec& spec, const MatrixFormat& format);
  void add_experts(uint64_t layer, const std::vector<TensorSpec>& parts,
                   const std::vector<MatrixFormat>& formats, uint64_t n_experts);
  void finish();
  uint64_t total_bytes() const;
};

}  // namespace moeflux
