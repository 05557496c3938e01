#include "base/machine.h"

#include <sched.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

namespace galley {
namespace {

// A line "NAME:   VALUE unit" of a /proc file.
std::optional<std::string> proc_field(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return std::nullopt;
}

int64_t memory_field(std::string_view name) {
  const std::optional<std::string> text = proc_field("/proc/meminfo", name);
  return text.has_value() ? std::strtoll(text->c_str(), nullptr, 10) * 1024 : 0;
}

// A control group's number; nothing when there is no such file or no limit.
std::optional<int64_t> group_number(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

int32_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu_name = proc_field("/proc/cpuinfo", "model name").value_or("");
  machine.cpus = usable_cpus();
  machine.memory_bytes = memory_field("MemTotal");
  machine.available_bytes = memory_field("MemAvailable");
  const std::optional<int64_t> limit = group_number("/sys/fs/cgroup/memory.max");
  if (limit.has_value() && *limit < machine.memory_bytes) {
    const int64_t used = group_number("/sys/fs/cgroup/memory.current").value_or(0);
    machine.memory_bytes = *limit;
    machine.available_bytes = std::clamp<int64_t>(*limit - used, 0, machine.available_bytes);
  }
#if defined(__x86_64__)
  __builtin_cpu_init();
  machine.has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  machine.has_avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  machine.has_avx512_bf16 = machine.has_avx512 && __builtin_cpu_supports("avx512bf16") != 0;
#endif
  return machine;
}

int64_t disk_free_bytes(const std::string& path) {
  struct statvfs info = {};
  if (::statvfs(path.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace galley
