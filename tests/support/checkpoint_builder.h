// Writes small checkpoints by hand: any names, types and bytes, headers over sparse files, and deliberate
// damage.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "package/safetensors.h"
#include "support/support.h"

namespace moeflux::test {

struct RawTensor {
  DType type;
  std::vector<uint64_t> shape;
  std::string bytes;
};

// One safetensors file with these tensors.
void write_safetensors(const fs::path& path, const std::map<std::string, RawTensor>& tensors);
// The same, with a header that claims data which the file, sparse, has as zeros only.
void write_sparse_safetensors(const fs::path& path,
                              const std::map<std::string, std::pair<DType, std::vector<uint64_t>>>& tensors);
// A safetensors file with this JSON text as its header and `data` after it.
std::string raw_safetensors(const std::string& header, const std::string& data);

std::map<std::string, RawTensor> read_safetensors(const fs::path& path);

Json read_json(const fs::path& path);

}  // namespace moeflux::test
