// Checkpoint -> package. Streams (a bounded piece of the model in memory at a time), uses all cores, and can
// be killed at any moment: work goes to PACKAGE.partial, finished units are journaled after their bytes are
// synced, a rerun with the same source and options goes on from there and gives the same bytes, and only a
// whole package is renamed to PACKAGE.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "convert/layout.h"
#include "convert/source.h"
#include "io/file.h"

namespace moeflux {

struct ConvertOptions {
  WidthOptions width = {};
  bool mtp = false;
  bool consume = false;  // delete each source shard once its content is converted and synced
  size_t threads = 0;    // 0: all
};

PackageLayout lay_out_package(const Source& source, const WidthOptions& width,
                              const std::string& source_text);

// The package's folder without a trailing slash, the folder that a conversion works in, and where it keeps
// the headers of shards it has consumed.
fs::path target_folder(const fs::path& package);
fs::path partial_folder(const fs::path& package);
fs::path consumed_headers(const fs::path& package);

// Opens the checkpoint (going on from consumed shards where there are any) and resolves it.
struct OpenSource {
  Json config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Source> source;
};
OpenSource open_source(const fs::path& folder, const fs::path& package, bool mtp, bool keep_resident);

struct ConvertResult {
  Manifest manifest;
  uint64_t bytes_written = 0, units_resumed = 0;
};
ConvertResult convert_package(const OpenSource& open, const fs::path& package, const ConvertOptions& options);

// True where an earlier conversion was killed after its package was whole and before it had tidied up: tidies
// up.
bool finish_tidying(const fs::path& package);

// A package under construction: files of the right size in PACKAGE.partial/package. publish() makes it whole.
class PackageWriter {
 public:
  PackageWriter(const fs::path& package, PackageLayout layout, bool reserve);
  const PackageLayout& layout() const { return layout_; }
  Manifest& manifest() { return layout_.manifest; }
  const File& resident() const { return resident_; }
  const File& experts(size_t layer_index) const { return experts_[layer_index]; }
  void sync() const;
  void copy_published_files(const fs::path& from) const;  // config, tokenizer, generation config, licence
  void publish();                                         // writes the manifest, syncs, renames

 private:
  fs::path target_, folder_;
  PackageLayout layout_;
  File resident_;
  std::vector<File> experts_;
};

// Refuses a target that exists, cannot be written or does not fit on its disk. `package` may not be there
// yet.
void check_target(const fs::path& package, uint64_t bytes, bool check_space);

// Held while a conversion works in its folder; a second one is refused.
class PartialLock {
 public:
  explicit PartialLock(const fs::path& package);

 private:
  File file_;
};

}  // namespace moeflux
