// An open package: its files checked against its manifest. Resident tensors are loaded and verified on
// demand; expert records are read one at a time. Thread-safe for reading once constructed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/json_fwd.h"
#include "io/file.h"
#include "package/manifest.h"

namespace moeflux {

class Package {
 public:
  explicit Package(const fs::path& folder);  // throws Error naming the file, the field and the numbers
  ~Package();

  const fs::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const Json& config() const { return *config_; }
  std::string config_path() const { return (folder_ / "config.json").string(); }

  // Reads one expert record of record_bytes; with `check`, compares its checksum. Throws Error{Io | Corrupt}.
  // `direct`: past the page cache where that is possible, for reading everything once; `into` is
  // page-aligned.
  void read_record(const ExpertLayer& layer, uint64_t expert, std::span<std::byte> into, bool check,
                   bool direct = false) const;
  // Reads one resident tensor (bytes rounded up to kTensorAlignment) and compares its checksum.
  void read_resident(const ResidentTensor& tensor, std::span<std::byte> into) const;

 private:
  void match_resident_table();

  fs::path folder_;
  Manifest manifest_;
  std::unique_ptr<const Json> config_;
  File resident_;
  std::map<uint64_t, File> experts_, direct_;
};

// All resident tensors of a package in one buffer.
class ResidentWeights {
 public:
  explicit ResidentWeights(const Package& package, size_t threads);

  const std::byte* find(const std::string& name) const;  // null where there is none
  uint64_t bytes() const { return buffer_.size(); }

 private:
  AlignedBuffer buffer_;
  std::map<std::string, size_t> offset_;
};

}  // namespace moeflux
