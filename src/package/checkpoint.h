// A published checkpoint: config.json and one or more safetensors files. Opening reads the tables only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "package/safetensors.h"

namespace moeflux {

struct Shard {
  std::string name;
  std::optional<File> file;  // empty: consumed by an earlier, interrupted conversion
  uint64_t bytes = 0;
  std::string header;  // as read_safetensors_header gives it
};

struct CheckpointTensor {
  TensorInfo info;
  size_t shard = 0;
};

class Checkpoint {
 public:
  // `consumed`: a folder with the headers of shards that a conversion with --consume has deleted (see
  // convert.h).
  explicit Checkpoint(const fs::path& folder, const fs::path& consumed = {});

  const fs::path& folder() const { return folder_; }
  const std::vector<Shard>& shards() const { return shards_; }
  const std::map<std::string, CheckpointTensor>& tensors() const { return tensors_; }
  const CheckpointTensor* find(const std::string& name) const;
  uint64_t bytes() const;

  void read(const CheckpointTensor& tensor, uint64_t offset, std::span<std::byte> into) const;

 private:
  void add_shard(const std::string& name, const fs::path& consumed);

  fs::path folder_;
  std::vector<Shard> shards_;
  std::map<std::string, CheckpointTensor> tensors_;
};

// Whether a folder looks like a checkpoint, or like a package of ours.
bool is_checkpoint(const fs::path& folder);
bool is_package(const fs::path& folder);

}  // namespace moeflux
