// How fast the drive under a package delivers, and with which reads: measured, since neither past the page
// cache nor deep nor large is best everywhere.
#pragma once

#include <optional>
#include <string>

#include "io/file.h"
#include "io/read_queue.h"

namespace moeflux {

struct ReadSettings {
  std::string queue = "auto";  // read_queue_names()
  bool direct = true;          // past the page cache
  size_t piece_bytes = 256 << 10, depth = 12;
  // Where everything is read and nobody waits for a single record: more and larger reads cost less each.
  size_t bulk_piece_bytes = 1 << 20, bulk_depth = 32;
};

// What the user has fixed; the probe chooses the rest.
struct ReadWishes {
  std::string queue = "auto";
  std::optional<bool> direct = {};
  std::optional<size_t> piece_bytes = {}, depth = {};
};

// A file of records, opened for both kinds of reads; `direct` is null where the file system has no such
// reads.
struct RecordFile {
  const File* buffered = nullptr;
  const File* direct = nullptr;
  uint64_t record_bytes = 0, n_records = 0;
};

struct DriveSpeed {
  ReadSettings settings;
  double bytes_per_s = 0;
};

std::string to_string(const ReadSettings& settings);

// Reads random records for about `bytes`. Pages that the page cache holds are dropped first.
double measure_drive(std::span<const RecordFile> files, const ReadSettings& settings, uint64_t bytes,
                     uint64_t seed = 1);

// Tries a few settings, some tens of megabytes each, and gives the best. Files with little in them are not
// worth it: the defaults come back, with a speed of 0.
DriveSpeed probe_drive(std::span<const RecordFile> files, const ReadWishes& wishes);

// A record is cut into pieces of about this size, in whole pages: [begin, end) of piece `index`.
struct PieceRange {
  uint64_t begin, end;
};
size_t piece_count(uint64_t record_bytes, size_t piece_bytes);
PieceRange piece_of(uint64_t record_bytes, size_t piece_bytes, size_t index);

}  // namespace moeflux
