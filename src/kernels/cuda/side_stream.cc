#include "kernels/cuda/side_stream.h"

#include <cuda_runtime_api.h>

namespace galley::kernels::cuda {

Result<void> open_side(SideStream& side) {
  if (side.stream != nullptr) return {};
  cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&side.forked, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&side.joined, cudaEventDisableTiming);
  return check_launch("making a second stream");
}

void close_side(SideStream& side) {
  if (side.stream == nullptr) return;
  cudaStreamSynchronize(side.stream);
  cudaEventDestroy(side.forked);
  cudaEventDestroy(side.joined);
  cudaStreamDestroy(side.stream);
  side = {};
}

void fork_side(Stream stream, const SideStream* side) { cudaEventRecord(side->forked, stream); }

void enter_side(const SideStream& side) { cudaStreamWaitEvent(side.stream, side.forked, 0); }

void join_side(Stream stream, const SideStream& side) {
  cudaEventRecord(side.joined, side.stream);
  cudaStreamWaitEvent(stream, side.joined, 0);
}

}  // namespace galley::kernels::cuda
