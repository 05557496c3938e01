// What all kernels that compute in host memory share: staging is nothing, rows
// are copied by the calling thread.
#pragma once

#include <memory>
#include <span>

#include "kernels/ops.h"

namespace galley::kernels {

// Not inline: fast/ is compiled for instruction sets that the rest of the program is not.
class HostOps : public Ops {
 public:
  HostOps();
  ~HostOps() override;
  Memory& memory() override;
  ExpertSharing* sharing() override;
  Result<void> reserve(const StepBounds& bounds) override;
  void begin_step() override;
  Result<void> finish() override;
  const void* stage(const void* host, int64_t bytes) override;
  void copy(std::span<const RowCopy> copies) override;

 private:
  std::unique_ptr<ExpertSharing> sharing_;
};

}  // namespace galley::kernels
