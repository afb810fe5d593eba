#include "gen/shared_bytes.h"

namespace moeflux {

void SharedBytes::add(const Sequence& state) {
  for (const MemoryPart& part : state.memory())
    if (holders_[part.id]++ == 0) bytes_ += part.bytes;
}

void SharedBytes::remove(const Sequence& state) {
  for (const MemoryPart& part : state.memory()) {
    const auto it = holders_.find(part.id);
    if (--it->second > 0) continue;
    holders_.erase(it);
    bytes_ -= part.bytes;
  }
}

void SharedBytes::add(const History& history) {
  add(history.sequence());
  for (const History::Checkpoint& c : history.checkpoint_states()) add(*c);
}

void SharedBytes::remove(const History& history) {
  remove(history.sequence());
  for (const History::Checkpoint& c : history.checkpoint_states()) remove(*c);
}

}  // namespace moeflux
