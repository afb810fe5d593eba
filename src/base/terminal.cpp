#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace moeflux {

bool is_capable_terminal(int fd) {
  const char* kind = std::getenv("TERM");
  return isatty(fd) && kind && *kind && std::string_view(kind) != "dumb";
}

int terminal_columns(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

}  // namespace moeflux
