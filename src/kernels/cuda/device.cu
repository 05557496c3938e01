#include <cuda_runtime.h>

#include <cstdlib>

#include "kernels/cuda/device.h"

namespace galley::kernels::cuda {
namespace {

Error cuda_error(const char* what, cudaError_t code) {
  if (code == cudaErrorInsufficientDriver) {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
      return Error{ErrorCode::kUnsupported,
                   "CUDA: this machine has no NVIDIA driver; use --backend fast"};
    }
    return Error{ErrorCode::kUnsupported,
                 "CUDA: the driver serves CUDA " + std::to_string(driver / 1000) + "." +
                     std::to_string(driver % 1000 / 10) + ", this program needs " +
                     std::to_string(CUDART_VERSION / 1000) + "." +
                     std::to_string(CUDART_VERSION % 1000 / 10) + "; update the driver"};
  }
  if (code == cudaErrorNoDevice) {
    return Error{ErrorCode::kUnsupported,
                 "CUDA: the driver sees no card (CUDA_VISIBLE_DEVICES hides some); use --backend "
                 "fast"};
  }
  const bool full = code == cudaErrorMemoryAllocation;
  return Error{full ? ErrorCode::kExhausted : ErrorCode::kIo, std::string("CUDA: ") + what + ": " +
                                                                  cudaGetErrorName(code) + ", " +
                                                                  cudaGetErrorString(code)};
}

// The number of devices. Before the driver starts it is told to load all kernels at once, some 10
// ms: one that is loaded when it is first launched may wait for the device, and a step that was
// submitted ahead waits there for the host. Whoever set the variable has their way.
cudaError_t count_devices(int& count) {
  static const int set = setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  static_cast<void>(set);
  return cudaGetDeviceCount(&count);
}

Result<DeviceProperties> properties_of(int32_t index) {
  cudaDeviceProp prop{};
  if (const cudaError_t code = cudaGetDeviceProperties(&prop, index); code != cudaSuccess) {
    return cuda_error("reading the properties of a device", code);
  }
  DeviceProperties result;
  result.index = index;
  result.name = prop.name;
  result.major = prop.major;
  result.minor = prop.minor;
  result.multiprocessors = prop.multiProcessorCount;
  result.memory_bytes = static_cast<int64_t>(prop.totalGlobalMem);
  result.l2_bytes = prop.l2CacheSize;
  result.shared_bytes_max = static_cast<int64_t>(prop.sharedMemPerBlockOptin);
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess) result.driver_version = driver;
  return result;
}

}  // namespace

Result<std::vector<DeviceProperties>> list_devices() {
  int count = 0;
  if (const cudaError_t code = count_devices(count); code != cudaSuccess) {
    return cuda_error("counting devices", code);
  }
  std::vector<DeviceProperties> devices;
  for (int32_t index = 0; index < count; ++index) devices.push_back(TRY(properties_of(index)));
  return devices;
}

Result<DeviceProperties> open_device(int32_t index) {
  int count = 0;
  if (const cudaError_t code = count_devices(count); code != cudaSuccess) {
    return cuda_error("counting devices", code);
  }
  if (index < 0 || index >= count) {
    return Error{ErrorCode::kInvalid, "CUDA: no device " + std::to_string(index) + ", there are " +
                                          std::to_string(count)};
  }
  DeviceProperties device = TRY(properties_of(index));
  if (!device.is_sm90()) {
    return Error{ErrorCode::kUnsupported,
                 "CUDA: " + device.name + " has compute capability " +
                     std::to_string(device.major) + "." + std::to_string(device.minor) +
                     "; the kernels are for 9.0 (H100, H200, H20); use --backend fast"};
  }
  if (const cudaError_t code = cudaSetDevice(index); code != cudaSuccess) {
    return cuda_error("choosing a device", code);
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (const cudaError_t code = cudaMemGetInfo(&free_bytes, &total_bytes); code != cudaSuccess) {
    return cuda_error("starting on a device", code);
  }
  device.memory_free_bytes = static_cast<int64_t>(free_bytes);
  return device;
}

Result<void> reach_device(int32_t other) {
  int own = 0;
  int reaches = 0;
  cudaGetDevice(&own);
  if (const cudaError_t code = cudaDeviceCanAccessPeer(&reaches, own, other); code != cudaSuccess) {
    return cuda_error("asking whether devices are connected", code);
  }
  if (reaches == 0) {
    return Error{ErrorCode::kUnsupported, "CUDA: device " + std::to_string(own) +
                                              " does not reach the memory of device " +
                                              std::to_string(other)};
  }
  const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return {};
  }
  if (code != cudaSuccess) return cuda_error("connecting devices", code);
  return {};
}

Result<void> check_launch(const char* what) {
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return {};
  return cuda_error(what, code);
}

}  // namespace galley::kernels::cuda
