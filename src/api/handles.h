// The handles of the C API: numbers that look like pointers and are never followed, so that any value that a
// caller may hand in can be told from one of ours. This table is the one thing that all models of a process
// share, and it only says which handles there are. All functions may be called by any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "moeflux/moeflux.h"

namespace moeflux::api {

struct ModelState;
struct SamplerState;
struct CancelState;
class ContextState;

enum class HandleKind : uint8_t { Model, Sampler, Cancel, Context };

template <class Handle>
struct HandleTraits;
template <>
struct HandleTraits<moeflux_model> {
  using State = ModelState;
  static constexpr HandleKind kind = HandleKind::Model;
  static constexpr const char* name = "model";
};
template <>
struct HandleTraits<moeflux_sampler> {
  using State = SamplerState;
  static constexpr HandleKind kind = HandleKind::Sampler;
  static constexpr const char* name = "sampler";
};
template <>
struct HandleTraits<moeflux_cancel> {
  using State = CancelState;
  static constexpr HandleKind kind = HandleKind::Cancel;
  static constexpr const char* name = "cancel";
};
template <>
struct HandleTraits<moeflux_context> {
  using State = ContextState;
  static constexpr HandleKind kind = HandleKind::Context;
  static constexpr const char* name = "context";
};

class HandleTable {
 public:
  static HandleTable& instance();

  uintptr_t add(HandleKind kind, std::shared_ptr<void> state);
  // Null where there is no such handle of this kind. What is found stays alive while the caller holds it.
  std::shared_ptr<void> find(HandleKind kind, uintptr_t handle) const;
  std::shared_ptr<void> remove(HandleKind kind, uintptr_t handle);

 private:
  struct Entry {
    HandleKind kind;
    std::shared_ptr<void> state;
  };
  mutable std::mutex mutex_;  // guards both
  std::unordered_map<uintptr_t, Entry> entries_;
  uint64_t n_made_ = 0;
};

[[noreturn]] void fail_handle(const char* name, const void* handle);

template <class Handle>
Handle* make_handle(std::shared_ptr<typename HandleTraits<Handle>::State> state) {
  const uintptr_t number = HandleTable::instance().add(HandleTraits<Handle>::kind, std::move(state));
  return reinterpret_cast<Handle*>(number);
}

// Throws a Failure with MOEFLUX_INVALID_HANDLE.
template <class Handle>
std::shared_ptr<typename HandleTraits<Handle>::State> find_handle(const Handle* handle) {
  using Traits = HandleTraits<Handle>;
  auto state = HandleTable::instance().find(Traits::kind, reinterpret_cast<uintptr_t>(handle));
  if (!state) fail_handle(Traits::name, handle);
  return std::static_pointer_cast<typename Traits::State>(std::move(state));
}

template <class Handle>
std::shared_ptr<typename HandleTraits<Handle>::State> remove_handle(const Handle* handle) {
  using Traits = HandleTraits<Handle>;
  auto state = HandleTable::instance().remove(Traits::kind, reinterpret_cast<uintptr_t>(handle));
  if (!state) fail_handle(Traits::name, handle);
  return std::static_pointer_cast<typename Traits::State>(std::move(state));
}

}  // namespace moeflux::api
