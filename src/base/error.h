// Three kinds of trouble, three mechanisms: Error for what the world does to us (files, disks, memory,
// input), plain values for expected outcomes, check() for our own bugs. Error is caught in each tool's main,
// at the edge of the C API, at the server's per-request boundary and between the turns of a conversation
// only; bad user input must never reach check().
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace moeflux {

enum class Errc {
  NotFound,
  Exists,
  Corrupt,
  Unsupported,
  InvalidArgument,
  Io,
  NoSpace,
  OutOfMemory,
  Device,
  Busy
};

struct Error : std::runtime_error {
  Error(Errc c, const std::string& what) : std::runtime_error(what), code(c) {}
  Errc code;
};

// fail(Errc::Corrupt, "{}: {} bytes, want {}", path, have, want)
template <class... Args>
[[noreturn]] void fail(Errc code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// The same for a failed system call: appends the text of errno and picks the code from it.
[[noreturn]] void fail_errno(int err, const std::string& what);

[[noreturn]] void panic(const char* what, const char* file, int line) noexcept;

// The defaults are the caller's place; std::source_location would be the same, but clang 14 does not have it.
inline void check(bool ok, const char* what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) noexcept {
  if (!ok) [[unlikely]]
    panic(what, file, line);
}

}  // namespace moeflux
