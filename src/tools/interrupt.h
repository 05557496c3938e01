// Ctrl-C and SIGTERM as a flag that loops look at between steps.
//
// The first signal asks; the second one ends the process as if nobody listened.
#pragma once

namespace galley::tools {

// Listens, and forgets a signal that came before.
void listen_for_interrupt();
bool interrupted();

}  // namespace galley::tools
