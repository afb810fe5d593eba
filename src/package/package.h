// An open package: its files checked against its manifest. Resident tensors are loaded and verified on
// demand; expert records are read one at a time. Thread-safe for reading once constructed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "base/json_fwd.h"
#include "base/progress.h"
#include "io/drive.h"
#include "package/manifest.h"

namespace moeflux {

class Package {
 public:
  // Throws Error naming the file, the field and the numbers. Expert files may lie in further folders as well
  // (docs/FORMAT.md, "Stripes"): each record is then read from one of them, in turn.
  explicit Package(const fs::path& folder, std::vector<fs::path> stripes = {});
  ~Package();

  const fs::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const Json& config() const { return *config_; }
  std::string config_path() const { return (folder_ / "config.json").string(); }

  // Where an expert's record lies; `direct` is null where the file system has no reads past the page cache.
  struct RecordPlace {
    const File* buffered;
    const File* direct;
    uint64_t offset;
  };
  RecordPlace place(const ExpertLayer& layer, uint64_t expert) const;
  std::vector<RecordFile> record_files() const;
  // Reads one record of record_bytes, now, through the page cache, and compares its checksum. Throws
  // Error{Io | Corrupt}.
  void read_record(const ExpertLayer& layer, uint64_t expert, std::span<std::byte> into) const;
  // What is wrong with a record of this checksum; nothing if it is the expert's.
  std::optional<Error> wrong_checksum(const ExpertLayer& layer, uint64_t expert, uint64_t xxh3) const;
  // Reads one resident tensor (bytes rounded up to kTensorAlignment) and compares its checksum.
  void read_resident(const ResidentTensor& tensor, std::span<std::byte> into) const;

 private:
  void match_resident_table();

  fs::path folder_;
  Manifest manifest_;
  std::unique_ptr<const Json> config_;
  File resident_;
  struct LayerFile {
    File buffered;
    std::optional<File> direct;
  };
  void open_layer(const ExpertLayer& layer, const fs::path& path);
  std::map<uint64_t, std::vector<LayerFile>> experts_;  // by layer: one file, and one per stripe that has it
};

// All resident tensors of a package in one buffer.
class ResidentWeights {
 public:
  ResidentWeights(const Package& package, size_t threads, const ProgressSink& progress = {});

  const std::byte* find(const std::string& name) const;  // null where there is none
  uint64_t bytes() const { return buffer_.size(); }
  std::span<const std::byte> memory() const { return buffer_.bytes(); }

 private:
  AlignedBuffer buffer_;
  std::map<std::string, size_t> offset_;
};

}  // namespace moeflux
