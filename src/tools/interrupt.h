// Ctrl-C and SIGTERM as a flag that loops look at between steps.
//
// The first signal asks; the second one ends the process as if nobody listened.
#pragma once

namespace galley::tools {

// Listens, and forgets a signal that came before.
void listen_for_interrupt();
bool interrupted();

// Waits until `fd` can be read without waiting (or has ended); false when a signal came first.
// A plain read would miss one that comes between a look at the flag and the read.
bool wait_readable(int fd);

}  // namespace galley::tools
