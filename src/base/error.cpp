#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace moeflux {

void fail_errno(int err, const std::string& what) {
  Errc code = Errc::Io;
  if (err == ENOENT || err == ENOTDIR) code = Errc::NotFound;
  if (err == EEXIST || err == ENOTEMPTY) code = Errc::Exists;
  if (err == ENOSPC || err == EDQUOT) code = Errc::NoSpace;
  if (err == ENOMEM) code = Errc::OutOfMemory;
  throw Error(code, fmt::format("{}: {}", what, std::strerror(err)));
}

void panic(const char* what, const char* file, int line) noexcept {
  std::fprintf(stderr, "moeflux: bug: %s (%s:%d)\n", what, file, line);
  std::abort();
}

}  // namespace moeflux
