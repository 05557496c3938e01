// The CUDA backend of a program that was built without it.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kernel_bench.h"

namespace galley::kernels::cuda {
namespace {

Error without_cuda() {
  return Error{ErrorCode::kUnsupported,
               "this program was built without CUDA (cmake found no nvcc, or GALLEY_CUDA=OFF)"};
}

}  // namespace

Result<std::vector<DeviceProperties>> list_devices() { return without_cuda(); }
Result<DeviceProperties> open_device(int32_t /*index*/) { return without_cuda(); }
Result<void> reach_device(int32_t /*other*/) { return without_cuda(); }
Result<void> check_launch(const char* /*what*/) { return without_cuda(); }
Result<std::unique_ptr<Ops>> make_cuda_ops(int32_t /*index*/) { return without_cuda(); }
int64_t command_count(const Ops& /*ops*/) { return 0; }
Result<KernelFloors> measure_kernel_floors() { return without_cuda(); }
Result<void> bench_experts(const KernelFloors& /*floors*/, BenchRows /*which*/, bool /*quick*/,
                           const ReportKernel& /*report*/) {
  return without_cuda();
}
Result<void> bench_dense(const KernelFloors& /*floors*/, BenchRows /*which*/,
                         const ReportKernel& /*report*/) {
  return without_cuda();
}
Result<void> bench_attention(const KernelFloors& /*floors*/, BenchRows /*which*/,
                             const ReportKernel& /*report*/) {
  return without_cuda();
}
Result<void> bench_indexer(const KernelFloors& /*floors*/, BenchRows /*which*/,
                           const ReportKernel& /*report*/) {
  return without_cuda();
}

}  // namespace galley::kernels::cuda
