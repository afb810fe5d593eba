// States of texts that were evaluated before, so that what a new prompt has in common with one of them is not
// computed again: in memory, and in a folder that later processes use too. What was used last stays longest.
//
// A state belongs to its model, settings and backend. Files appear whole or not at all and are checksummed;
// what is damaged or belongs to something else is passed over, with a warning. For the engine's thread; a
// folder is for one process at a time.
#pragma once

#include <list>

#include "gen/shared_bytes.h"
#include "gen/snapshot.h"

namespace moeflux {

struct PrefixCacheOptions {
  uint64_t ram_bytes = 0;  // of states in memory
  fs::path folder = {};    // empty: nothing on disk
  uint64_t disk_bytes = 0;
  HistoryOptions history = {};                        // of texts that are read from the disk
  std::function<void(const std::string&)> warn = {};  // default: to stderr
};

struct PrefixCacheStats {
  uint64_t n_asked = 0, n_from_ram = 0, n_from_disk = 0;
  uint64_t tokens_asked = 0, tokens_found = 0;
  uint64_t ram_entries = 0, ram_bytes = 0, disk_entries = 0, disk_bytes = 0;
};

class PrefixCache {
 public:
  // Throws Error{Exists} where another process uses the folder, and what cannot be made or read of it.
  PrefixCache(const PrefixCacheOptions& options, Engine& engine);
  ~PrefixCache();

  // A text of its own with the longest beginning of these tokens that is kept, short of the last token, whose
  // logits are wanted; null: there is none.
  std::unique_ptr<History> find(std::span<const Token> tokens);
  // Keeps a text as it is now: in memory, and in the folder unless it will soon be kept again. A failure to
  // write or to copy is a warning.
  enum class Where : uint8_t { Everywhere, Memory };
  void keep(const History& history, Where where = Where::Everywhere);

  PrefixCacheStats stats() const;

 private:
  struct Entry;                      // in memory
  struct DiskEntry;                  // on disk
  using Entries = std::list<Entry>;  // most recently used first
  using DiskEntries = std::list<DiskEntry>;

  void open_folder();
  void add(std::unique_ptr<History> history);
  void drop(Entries::iterator entry);
  size_t reach(const DiskEntry& entry, std::span<const Token> tokens) const;
  std::unique_ptr<History> load(DiskEntries::iterator entry);
  void write(const History& history);
  void remove_file(DiskEntries::iterator entry);
  void forget(DiskEntries::iterator entry);
  void make_room(uint64_t bytes);
  void warn(const std::string& text) const;

  const PrefixCacheOptions options_;
  Engine& engine_;
  const SnapshotMaker maker_;
  Entries entries_;
  SharedBytes ram_;
  std::optional<File> lock_;
  DiskEntries disk_;
  uint64_t disk_bytes_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace moeflux
