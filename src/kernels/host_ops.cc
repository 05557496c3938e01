#include "kernels/host_ops.h"

#include <cstring>

#include "kernels/host_expert_sharing.h"

namespace galley::kernels {

HostOps::HostOps() : sharing_(make_host_sharing(*this)) {}
HostOps::~HostOps() = default;

ExpertSharing* HostOps::sharing() { return sharing_.get(); }
Memory& HostOps::memory() { return host_memory(); }
Result<void> HostOps::reserve(const StepBounds& /*bounds*/) { return {}; }
void HostOps::begin_step() {}
Result<void> HostOps::finish() { return {}; }
const void* HostOps::stage(const void* host, int64_t /*bytes*/) { return host; }

void HostOps::copy(std::span<const RowCopy> copies) {
  for (const RowCopy& one : copies) {
    std::memcpy(one.to, one.from, static_cast<size_t>(one.bytes));
  }
}

}  // namespace galley::kernels
