#include "server/response_store.h"

namespace moeflux {
namespace {

// What the JSON takes as text, twice: a fair guess of its memory.
size_t size_of(const StoredResponse& r) {
  size_t bytes = 0;
  for (const OrderedJson* part : {&r.response, &r.input, &r.messages})
    bytes += part->dump(-1, ' ', false, OrderedJson::error_handler_t::replace).size();
  return 2 * bytes;
}

}  // namespace

void ResponseStore::drop(std::map<std::string, Entry>::iterator entry) {
  bytes_ -= entry->second.bytes;
  recent_.erase(entry->second.place);
  entries_.erase(entry);
}

void ResponseStore::keep(const std::string& id, StoredResponse response) {
  const size_t bytes = size_of(response);
  if (bytes > budget_) return;
  const std::lock_guard lock(mutex_);
  if (const auto it = entries_.find(id); it != entries_.end()) drop(it);
  while (bytes_ + bytes > budget_) drop(entries_.find(recent_.back()));
  recent_.push_front(id);
  entries_[id] = {std::make_shared<const StoredResponse>(std::move(response)), bytes, recent_.begin()};
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, it->second.place);
  return it->second.response;
}

bool ResponseStore::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) return false;
  drop(it);
  return true;
}

}  // namespace moeflux
