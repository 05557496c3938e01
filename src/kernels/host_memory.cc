// Memory of kernels that run on the host.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "kernels/memory.h"

namespace galley::kernels {
namespace {

// Stateless: pointers are the host's, transfers are copies.
class HostMemory final : public Memory {
 public:
  bool is_host() const override { return true; }
  int64_t free_bytes() const override { return INT64_MAX; }

  // Address space only: the system gives memory page by page on first touch.
  Result<void*> allocate(int64_t bytes, const char* what) override {
    void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Error{ErrorCode::kExhausted, "cannot reserve " + std::to_string(bytes) +
                                              " bytes for " + what + ": " + std::strerror(errno)};
    }
    return memory;
  }
  void release(void* memory, int64_t bytes) override { munmap(memory, static_cast<size_t>(bytes)); }
  Result<void*> allocate_host(int64_t bytes, const char* what) override {
    return allocate(bytes, what);
  }
  void release_host(void* memory, int64_t bytes) override { release(memory, bytes); }

  // Of nothing, either pointer may be null, which memmove forbids.
  void write(void* to, const void* from_host, int64_t bytes) override {
    if (bytes > 0) std::memmove(to, from_host, static_cast<size_t>(bytes));
  }
  void read(void* to_host, const void* from, int64_t bytes) override {
    write(to_host, from, bytes);
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace galley::kernels
