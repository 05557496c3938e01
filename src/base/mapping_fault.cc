#include "base/mapping_fault.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

namespace galley {
namespace {

// Of a longer path its end is kept: that is where the file's name is.
constexpr size_t kPathBytesMax = 256;

struct Mapping {
  std::atomic<uintptr_t> begin{0};  // 0: free. Written last, so that a handler sees it whole
  size_t size = 0;
  size_t path_size = 0;
  std::array<char, kPathBytesMax> path = {};
};

// A signal handler can reach nothing but a global, and may not allocate.
std::array<Mapping, kWatchedMappingsMax> mappings;
std::mutex writing;

void say(std::string_view text) {
  // A message that cannot be written cannot be reported either.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address - begin >= mapping.size) continue;
    say("galley: ");
    say({mapping.path.data(), mapping.path_size});
    say(": became shorter or unreadable while in use; restore the file and start again\n");
    ::_exit(1);
  }
  ::signal(signal, SIG_DFL);  // the fault repeats on return, and then ends the process
}

}  // namespace

void watch_mapping(const std::byte* data, size_t size, const std::string& path) {
  const std::scoped_lock lock(writing);
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load(std::memory_order_relaxed) != 0) continue;
    mapping.size = size;
    mapping.path_size = std::min(path.size(), kPathBytesMax);
    std::memcpy(mapping.path.data(), path.data() + path.size() - mapping.path_size,
                mapping.path_size);
    mapping.begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_release);
    return;
  }
}

void forget_mapping(const std::byte* data) {
  const std::scoped_lock lock(writing);
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load(std::memory_order_relaxed) == reinterpret_cast<uintptr_t>(data)) {
      mapping.begin.store(0, std::memory_order_release);
      return;
    }
  }
}

void report_mapping_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace galley
