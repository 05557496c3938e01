// What this machine offers: memory, processors, instruction sets.
//
// A container's limits count, not the host's.
#pragma once

#include <cstdint>
#include <string>

namespace galley {

struct Machine {
  std::string cpu_name;         // as the kernel names it; empty if it does not
  int32_t cpus = 1;             // that this process may use
  int64_t memory_bytes = 0;     // installed, or the container's limit
  int64_t available_bytes = 0;  // that can be used without swapping, page cache included
  bool has_avx2 = false;
  bool has_avx512 = false;       // F, BW, DQ, VL
  bool has_avx512_bf16 = false;  // bf16 dot products
};

Machine this_machine();

// Bytes that can still be written to the file system of `path`; 0 if unknown.
int64_t disk_free_bytes(const std::string& path);

}  // namespace galley
