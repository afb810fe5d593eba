#include "tools/standard_streams.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/error.h"

namespace moeflux {

std::string read_standard_input() {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(errno, "reading standard input");
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
    fail(Errc::Io, "writing to standard output failed");
}

}  // namespace moeflux
