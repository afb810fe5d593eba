#include "api/handles.h"

#include "api/call.h"

namespace moeflux::api {
namespace {

// Spreads the numbers of handles over all values, so that one that was made up is not likely to be one of
// ours; no two numbers give the same.
uintptr_t scatter(uint64_t n) {
  n = (n ^ (n >> 31)) * 0x7fb5d329728ea185;
  n = (n ^ (n >> 27)) * 0x81dadef4bc2dd44d;
  return n ^ (n >> 33);
}

}  // namespace

// Never destroyed: handles may still be used by threads that run while the process ends.
HandleTable& HandleTable::instance() {
  static HandleTable* const table = new HandleTable;
  return *table;
}

uintptr_t HandleTable::add(HandleKind kind, std::shared_ptr<void> state) {
  const std::lock_guard lock(mutex_);
  const uintptr_t handle = scatter(++n_made_);
  entries_.emplace(handle, Entry{kind, std::move(state)});
  return handle;
}

std::shared_ptr<void> HandleTable::find(HandleKind kind, uintptr_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(handle);
  return it != entries_.end() && it->second.kind == kind ? it->second.state : nullptr;
}

std::shared_ptr<void> HandleTable::remove(HandleKind kind, uintptr_t handle) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(handle);
  if (it == entries_.end() || it->second.kind != kind) return nullptr;
  std::shared_ptr<void> state = std::move(it->second.state);
  entries_.erase(it);
  return state;
}

void fail_handle(const char* name, const void* handle) {
  if (!handle) throw Failure(MOEFLUX_INVALID_HANDLE, fmt::format("the {} is null", name));
  throw Failure(MOEFLUX_INVALID_HANDLE, fmt::format("this handle is no {} that is open", name));
}

}  // namespace moeflux::api
