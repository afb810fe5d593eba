// Files as the project uses them: positioned reads and writes that either do all of it or throw an Error with
// the path and the numbers, and the few folder operations that make a package appear whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/owned.h"

namespace moeflux {

namespace fs = std::filesystem;

class File {
 public:
  static File open_read(const fs::path& path);
  // For reads past the page cache (offset, length and memory in whole pages); nothing where the file system
  // has no such reads.
  static std::optional<File> open_direct(const fs::path& path);
  static File create(const fs::path& path);      // truncates
  static File open_write(const fs::path& path);  // creates if needed, keeps the content

  uint64_t size() const;
  void read_at(uint64_t offset, std::span<std::byte> into) const;
  void write_at(uint64_t offset, std::span<const std::byte> from) const;
  void append(std::string_view text) const;  // at the end, in one write
  void resize(uint64_t bytes) const;         // reserves disk space where the file system can
  void start_writeback(uint64_t offset,
                       uint64_t bytes) const;  // hint: sync() will then have less to wait for
  void sync() const;                           // fdatasync
  bool try_lock() const;  // for this process alone, until the file is closed; false: another one has it

  int fd() const { return fd_.get(); }
  const fs::path& path() const { return path_; }

 private:
  File(Fd fd, fs::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Fd fd_;
  fs::path path_;
};

std::string read_text(const fs::path& path, uint64_t most_bytes);
void write_text(const fs::path& path, std::string_view text);  // written, synced

// Renames and makes the rename durable.
void rename_durably(const fs::path& from, const fs::path& to);
void sync_folder(const fs::path& folder);

}  // namespace moeflux
