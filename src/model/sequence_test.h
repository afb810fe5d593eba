// For tests of sequences, whatever the backend.
#pragma once

#include <initializer_list>
#include <map>

#include "model/sequence.h"

namespace moeflux {

// The bytes that sequences hold together.
inline uint64_t bytes_together(std::initializer_list<const Sequence*> sequences) {
  std::map<const void*, uint64_t> parts;
  for (const Sequence* s : sequences)
    for (const MemoryPart& part : s->memory()) parts[part.id] = part.bytes;
  uint64_t sum = 0;
  for (const auto& [id, bytes] : parts) sum += bytes;
  return sum;
}

}  // namespace moeflux
