#include "api/call.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/json.h"

namespace moeflux::api {
namespace {

constexpr size_t kMostStructBytes = 4096;  // a size beyond is a mistake, and reading so far might be one too

thread_local std::string last_error;

moeflux_status status_of(Errc code) {
  switch (code) {
    case Errc::NotFound:
      return MOEFLUX_NOT_FOUND;
    case Errc::Exists:
      return MOEFLUX_EXISTS;
    case Errc::Corrupt:
      return MOEFLUX_CORRUPT;
    case Errc::Unsupported:
      return MOEFLUX_UNSUPPORTED;
    case Errc::InvalidArgument:
      return MOEFLUX_INVALID_ARGUMENT;
    case Errc::Io:
      return MOEFLUX_IO;
    case Errc::NoSpace:
      return MOEFLUX_NO_SPACE;
    case Errc::OutOfMemory:
      return MOEFLUX_OUT_OF_MEMORY;
    case Errc::Device:
      return MOEFLUX_DEVICE;
    case Errc::Busy:
      return MOEFLUX_BUSY;
  }
  return MOEFLUX_INTERNAL;
}

moeflux_status keep(moeflux_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();  // not even memory for a message: the status says so
  }
  return status;
}

}  // namespace

moeflux_status current_exception_status() noexcept {
  try {
    throw;
  } catch (const Failure& e) {
    return keep(e.status, e.what());
  } catch (const Error& e) {
    return keep(status_of(e.code), e.what());
  } catch (const std::bad_alloc&) {
    return keep(MOEFLUX_OUT_OF_MEMORY, "there is not enough memory");
  } catch (const std::length_error&) {
    return keep(MOEFLUX_OUT_OF_MEMORY, "more memory is wanted than there can be");
  } catch (const std::exception& e) {
    return keep(MOEFLUX_INTERNAL, e.what());
  } catch (...) {
    return keep(MOEFLUX_INTERNAL, "an exception of no known type");
  }
}

std::string_view text_argument(const char* text, const char* name) {
  const size_t n_bytes = strnlen(&required(text, name), kMostTextBytes + 1);
  return text_argument(text, n_bytes, name);
}

std::string_view text_argument(const char* text, size_t n_bytes, const char* name) {
  if (n_bytes > kMostTextBytes) refuse("{} has {} bytes, of at most {}", name, n_bytes, kMostTextBytes);
  if (n_bytes > 0) required(text, name);
  return {text ? text : "", n_bytes};
}

std::span<const Token> token_argument(const Token* tokens, size_t n_tokens, const char* name) {
  if (n_tokens > kMostTokens) refuse("{} are {}, of at most {}", name, n_tokens, kMostTokens);
  if (n_tokens > 0) required(tokens, name);
  return {tokens, n_tokens};
}

size_t check_struct(const void* given, size_t first_size, size_t known_size, const char* name) {
  if (!given) refuse("{} is null", name);
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  const bool whole = size % alignof(size_t) == 0;  // no version of a struct ends inside a field
  if (size < first_size || size > kMostStructBytes || !whole)
    refuse("the size of {} is {}, want {}", name, size, known_size);
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (size > known_size &&
      std::any_of(bytes + known_size, bytes + size, [](unsigned char b) { return b != 0; }))
    refuse("{} holds what this version of the library does not know: it has {} bytes, and {} are known", name,
           size, known_size);
  return size;
}

char* give_text(std::string_view text) {
  char* memory = static_cast<char*>(std::malloc(text.size() + 1));
  if (!memory) throw std::bad_alloc();
  std::memcpy(memory, text.data(), text.size());
  memory[text.size()] = '\0';
  return memory;
}

void give_text(std::string_view text, char** into, size_t* n_bytes) {
  *into = give_text(text);
  *n_bytes = text.size();
}

void* give_memory(const void* bytes, size_t n_bytes) {
  void* memory = std::malloc(std::max<size_t>(n_bytes, 1));  // a caller may tell failure from nothing by it
  if (!memory) throw std::bad_alloc();
  if (n_bytes > 0) std::memcpy(memory, bytes, n_bytes);
  return memory;
}

}  // namespace moeflux::api

using namespace moeflux::api;

uint32_t moeflux_abi_version(void) { return MOEFLUX_ABI_VERSION; }
const char* moeflux_version(void) { return MOEFLUX_VERSION; }

const char* moeflux_status_name(moeflux_status status) {
  static constexpr const char* kNames[] = {
      "MOEFLUX_OK",        "MOEFLUX_NOT_FOUND",      "MOEFLUX_EXISTS",
      "MOEFLUX_CORRUPT",   "MOEFLUX_UNSUPPORTED",    "MOEFLUX_INVALID_ARGUMENT",
      "MOEFLUX_IO",        "MOEFLUX_NO_SPACE",       "MOEFLUX_OUT_OF_MEMORY",
      "MOEFLUX_DEVICE",    "MOEFLUX_INVALID_HANDLE", "MOEFLUX_BUSY",
      "MOEFLUX_CANCELLED", "MOEFLUX_TOO_SMALL",      "MOEFLUX_BROKEN",
      "MOEFLUX_INTERNAL"};
  static_assert(std::size(kNames) == MOEFLUX_INTERNAL + 1);
  return status >= 0 && status <= MOEFLUX_INTERNAL ? kNames[status] : "no status of moeflux";
}

const char* moeflux_last_error(void) { return last_error.c_str(); }
void moeflux_free(void* memory) { std::free(memory); }
