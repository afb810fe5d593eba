// A real terminal for tests: tmux, on a socket of its own, which ends with the object.
#pragma once

#include <string>
#include <vector>

#include "support/support.h"

namespace moeflux::test {

bool has_tmux();

class Terminal {
 public:
  // Runs the moeflux binary with these arguments in a window of 80 x 24.
  explicit Terminal(const std::vector<std::string>& args, const std::string& kind = "xterm-256color");
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& text);                // as it is
  void press(const std::vector<std::string>& keys);  // Enter, Left, C-c, M-Enter, ...
  void paste(const std::string& text);               // as terminals do it
  void resize(int columns, int rows);
  std::string screen() const;  // what has been written, from the beginning
  // Waits until the text is there so many times; false after half a minute.
  bool shows(const std::string& text, size_t times = 1) const;

 private:
  std::string tmux(const std::vector<std::string>& args, const std::string& input = "") const;
  TempFolder folder_;  // of its socket
};

}  // namespace moeflux::test
