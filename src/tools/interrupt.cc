#include "tools/interrupt.h"

#include <poll.h>

#include <cerrno>
#include <csignal>

namespace galley::tools {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t interrupt_seen = 0;

void on_signal(int) { interrupt_seen = 1; }

}  // namespace

void listen_for_interrupt() {
  interrupt_seen = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // and no SA_RESTART: a waiting read returns
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return interrupt_seen != 0; }

bool wait_readable(int fd) {
  // A signal may come between a look at the flag and the wait, or be taken by another thread:
  // so no wait is long.
  constexpr int kWaitMs = 50;
  while (!interrupted()) {
    pollfd wanted = {.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wanted, 1, kWaitMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return !interrupted();
  }
  return false;
}

}  // namespace galley::tools
