// A text and its state in a file or in memory (docs/FORMAT.md, section 12), for a later process with the same
// model and settings, or for another backend. What was damaged, cut short or made with something else is
// refused with the reason, before anything changes.
#pragma once

#include "gen/history.h"

namespace moeflux {

inline constexpr uint32_t kSnapshotVersion = 1;

// What a state depends on beside its tokens, and who computed it.
struct SnapshotMaker {
  std::string family;
  uint64_t model = 0;  // Manifest::identity
  Precision precision = Precision::Fast;
  KvType kv = KvType::Bf16;
  std::string backend;

  bool operator==(const SnapshotMaker&) const = default;
};
SnapshotMaker snapshot_maker(const Engine& engine);

// What a snapshot begins with.
struct SnapshotHeader {
  SnapshotMaker maker;
  std::vector<Token> tokens;
  uint64_t state_bytes = 0;
  struct Checkpoint {
    uint64_t position, bytes;
  };
  std::vector<Checkpoint> checkpoints;

  uint64_t header_bytes() const;
  uint64_t total_bytes() const;  // of the file
};

uint64_t snapshot_bytes(const History& history);
// Throw Error{InvalidArgument} of a text whose last step failed half-way.
void save_snapshot(const History& history, StateSink& sink);
std::vector<std::byte> save_snapshot(const History& history);
void save_snapshot(const History& history, const fs::path& path);  // appears whole or not at all

// Throw Error{Corrupt} of what is damaged or is no snapshot, Error{Unsupported} of another version,
// Error{InvalidArgument} where model, settings or context do not fit. The backend may be another one.
std::unique_ptr<History> load_snapshot(Engine& engine, const HistoryOptions& options, const fs::path& path);
std::unique_ptr<History> load_snapshot(Engine& engine, const HistoryOptions& options,
                                       std::span<const std::byte> bytes);
// The beginning of a file of the size that it must have; its state is not looked at.
SnapshotHeader read_snapshot_header(const fs::path& path);

}  // namespace moeflux
