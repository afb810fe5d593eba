// What every function of the C API does around its work: no exception leaves it, and the thread's last error
// is kept; structs of any version come in and go out; memory that the caller will own is handed over.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/token.h"
#include "moeflux/moeflux.h"

namespace moeflux::api {

// A failure that has no Errc, since it exists at this edge only.
struct Failure : std::runtime_error {
  Failure(moeflux_status s, const std::string& what) : std::runtime_error(what), status(s) {}
  moeflux_status status;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(MOEFLUX_INVALID_ARGUMENT, fmt::format(format, std::forward<Args>(args)...));
}

moeflux_status current_exception_status() noexcept;  // keeps its message, too; inside a catch

template <class Work>
moeflux_status call(Work&& work) noexcept {
  try {
    work();
    return MOEFLUX_OK;
  } catch (...) {
    return current_exception_status();
  }
}

template <class T>
T& required(T* pointer, const char* name) {
  if (!pointer) refuse("{} is null", name);
  return *pointer;
}

inline constexpr size_t kMostTextBytes = size_t{1} << 30;
inline constexpr size_t kMostTokens = kMostTextBytes / sizeof(Token);

std::string_view text_argument(const char* text, const char* name);  // ends with a zero
std::string_view text_argument(const char* text, size_t n_bytes,
                               const char* name);  // may be null where it is empty

std::span<const Token> token_argument(const Token* tokens, size_t n_tokens, const char* name);

// The size of each struct's first version: frozen, whatever is added to it.
template <class S>
inline constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<moeflux_open_options> = 144;
template <>
inline constexpr size_t kFirstSize<moeflux_model_info> = 152;
template <>
inline constexpr size_t kFirstSize<moeflux_plan> = 120;
template <>
inline constexpr size_t kFirstSize<moeflux_stats> = 112;
template <>
inline constexpr size_t kFirstSize<moeflux_chat> = 40;
template <>
inline constexpr size_t kFirstSize<moeflux_sampling> = 216;
template <>
inline constexpr size_t kFirstSize<moeflux_context_options> = 16;
template <>
inline constexpr size_t kFirstSize<moeflux_batch> = 48;
template <>
inline constexpr size_t kFirstSize<moeflux_generate_options> = 120;
template <>
inline constexpr size_t kFirstSize<moeflux_result> = 96;

// Returns the size that the caller has set.
size_t check_struct(const void* given, size_t first_size, size_t known_size, const char* name);

// The caller's struct as this version knows it: what an older one lacks is zero.
template <class S>
S read_struct(const S* given, const char* name) {
  static_assert(kFirstSize<S> > 0 && sizeof(S) >= kFirstSize<S>);
  const size_t size = check_struct(given, kFirstSize<S>, sizeof(S), name);
  S value{};
  std::memcpy(&value, given, std::min(size, sizeof(S)));
  value.size = sizeof(S);
  return value;
}
template <class S>
S read_struct_or_default(const S* given, const char* name) {
  return given ? read_struct(given, name) : S{};
}

// For structs that a function fills: as much of them as the caller has.
template <class S>
void write_struct(S* into, S value, const char* name) {
  static_assert(kFirstSize<S> > 0 && sizeof(S) >= kFirstSize<S>);
  value.size = check_struct(into, kFirstSize<S>, sizeof(S), name);
  std::memcpy(into, &value, std::min(value.size, sizeof(S)));
}

// For moeflux_free(); throws std::bad_alloc.
char* give_text(std::string_view text);
void give_text(std::string_view text, char** into, size_t* n_bytes);
void* give_memory(const void* bytes, size_t n_bytes);  // never null
template <class T>
void give_list(const std::vector<T>& list, T** into, size_t* n) {
  *into = static_cast<T*>(give_memory(list.data(), list.size() * sizeof(T)));
  *n = list.size();
}

}  // namespace moeflux::api
