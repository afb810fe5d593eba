#include "tools/interrupt.h"

namespace moeflux {
namespace {

volatile std::sig_atomic_t interrupted = 0;  // a handler can reach nothing but what is global

void note(int) { interrupted = 1; }

}  // namespace

Interrupt::Interrupt(Second second) {
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = second == Second::Kills ? static_cast<int>(SA_RESETHAND | SA_RESTART) : SA_RESTART;
  sigaction(SIGINT, &action, &before_);
}

Interrupt::~Interrupt() { sigaction(SIGINT, &before_, nullptr); }
bool Interrupt::pending() const { return interrupted != 0; }
void Interrupt::clear() { interrupted = 0; }

}  // namespace moeflux
