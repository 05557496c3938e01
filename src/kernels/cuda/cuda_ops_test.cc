// The CUDA backend through the tests of every backend (ops_test_cases.h), whose inputs
// are the host's (mirrored_ops.h). Skipped without a usable device.
#include "kernels/cuda/cuda_ops.h"

#include "kernels/mirrored_ops.h"
#include "kernels/ops_test_cases.h"

namespace galley::kernels {
namespace {

std::unique_ptr<Ops> mirrored_device() {
  static const std::unique_ptr<Ops> device = [] {
    auto made = cuda::make_cuda_ops(0);
    return made ? *std::move(made) : nullptr;
  }();
  return device == nullptr ? nullptr : make_mirrored_ops(*device);
}

Backend cuda_backend() {
  Backend backend;
  backend.name = "cuda";
  backend.make = [](ThreadPool&) { return mirrored_device(); };
  backend.attention_error = 0.01;  // probabilities are bf16, as the reference's
  return backend;
}

INSTANTIATE_TEST_SUITE_P(Cuda, OpsTest, testing::Values(cuda_backend()), backend_name);

}  // namespace
}  // namespace galley::kernels
