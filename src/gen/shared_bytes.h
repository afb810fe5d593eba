// The memory that several states hold together, where what they share counts once.
#pragma once

#include <unordered_map>

#include "gen/history.h"

namespace moeflux {

class SharedBytes {
 public:
  // States that do not change for as long as they are counted.
  void add(const Sequence& state);
  void add(const History& history);  // its state and its checkpoints
  void remove(const Sequence& state);
  void remove(const History& history);
  uint64_t bytes() const { return bytes_; }

 private:
  std::unordered_map<const void*, size_t> holders_;  // by part
  uint64_t bytes_ = 0;
};

}  // namespace moeflux
