// Recorded routes: which experts every step chose at every layer, as text (docs/FORMAT.md, section 11). A log
// knows nothing of weights or time; eviction policies and predictors are judged on it (store/cache_sim.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace moeflux {

struct RoutingShape {
  std::vector<uint32_t> layers;  // those with routed experts, by their number in the model, ascending
  uint32_t n_experts = 0;        // of each layer
  uint32_t top_k = 0;
  uint64_t record_bytes = 0;  // of the largest expert

  uint32_t n_all_experts() const { return static_cast<uint32_t>(layers.size()) * n_experts; }
  bool operator==(const RoutingShape&) const = default;
};

struct RoutingStep {
  uint32_t n_tokens = 0;
  std::vector<std::vector<uint32_t>> ids;  // [layers][n_tokens * top_k], in the order of RoutingShape::layers
};

// Writes a log. A step goes into the file once it is whole, so that a step that failed on its way through the
// layers leaves no trace.
class RoutingLogWriter {
 public:
  // Creates the file at once: a path that cannot be written is refused before the work.
  RoutingLogWriter(const fs::path& path, RoutingShape shape);
  ~RoutingLogWriter();  // writes what close() has not; an error is then reported on stderr
  RoutingLogWriter(const RoutingLogWriter&) = delete;
  RoutingLogWriter& operator=(const RoutingLogWriter&) = delete;

  // The choice of one layer: n_tokens * top_k ids. Layers come in ascending order; the first one begins a
  // step.
  void add(uint32_t layer, std::span<const uint32_t> ids);
  void close();  // throws Error{Io | NoSpace}, as add may

  const RoutingShape& shape() const { return shape_; }

 private:
  void flush();

  const RoutingShape shape_;
  const File file_;
  uint64_t written_ = 0;  // bytes
  std::string ready_;     // whole steps, not yet in the file
  std::string step_;      // the step on its way
  size_t n_layers_ = 0;   // of it
  size_t n_ids_ = 0;      // of each of its layers
  bool closed_ = false;
};

// Reads a log step by step. Everything in it is checked; an Error names the file, the line and the numbers.
class RoutingLogReader {
 public:
  explicit RoutingLogReader(const fs::path& path);

  const RoutingShape& shape() const { return shape_; }
  std::string source() const { return file_.path().string(); }
  bool next(RoutingStep& step);  // false: the log ends here

 private:
  std::optional<std::string_view> line(size_t most_bytes);  // valid until the next call
  std::string where() const;
  RoutingShape read_shape();
  void read_layer(uint32_t layer, size_t n_ids, std::vector<uint32_t>& ids);

  const File file_;
  const uint64_t size_;
  uint64_t at_ = 0;       // in the file: what the buffer does not hold yet
  std::string buffer_;    // a part of the file,
  size_t consumed_ = 0;   // and how much of it has been read
  uint64_t n_lines_ = 0;  // read so far
  const RoutingShape shape_;
  std::vector<uint32_t> seen_;  // by expert: the last token of this layer that chose it, counted from 1
};

}  // namespace moeflux
