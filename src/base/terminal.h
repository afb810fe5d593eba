// What a file descriptor can show.
#pragma once

namespace moeflux {

// A terminal on which a line can be drawn again and text be dimmed; not a pipe, a file, or TERM=dumb.
bool is_capable_terminal(int fd);
int terminal_columns(int fd);  // 80 where it does not say

}  // namespace moeflux
