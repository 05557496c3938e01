// What top, perf and debuggers call a thread.
#pragma once

#include <pthread.h>

namespace galley {

// Of the calling thread; at most 15 characters.
inline void name_thread(const char* name) {
  static_cast<void>(pthread_setname_np(pthread_self(), name));
}

}  // namespace galley
