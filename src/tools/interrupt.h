// Ctrl-C as a question that is asked between tokens, for as long as the object lives. There is one at a time.
#pragma once

#include <csignal>

namespace moeflux {

class Interrupt {
 public:
  enum class Second { Kills, Counts };  // what a second Ctrl-C does, if nobody has asked meanwhile
  explicit Interrupt(Second second);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool pending() const;
  void clear();

 private:
  struct sigaction before_ {};
};

}  // namespace moeflux
