// One CUDA device: what it is, and whether it can be used at all.
//
// A program built with CUDA runs on machines without a driver or a card; the
// first call of this file is where they are missed, in one clear line. Without
// nvcc the same functions are there and say so (without_cuda.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

// Of the CUDA runtime, without its headers: cudaStream_t, cudaEvent_t and cudaGraphExec_t are
// pointers to these.
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;

namespace galley::kernels::cuda {

using Stream = CUstream_st*;
using Event = CUevent_st*;

struct DeviceProperties {
  int32_t index = 0;
  std::string name;  // "NVIDIA H200"
  int32_t major = 0;
  int32_t minor = 0;
  int32_t multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t memory_free_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_max = 0;  // of one block
  int32_t driver_version = 0;    // 13000 = 13.0, the newest runtime that the driver serves

  bool is_sm90() const { return major == 9 && minor == 0; }
};

// Every device of this machine. kUnsupported without a driver, a card, or CUDA in the build; the
// message says which.
Result<std::vector<DeviceProperties>> list_devices();

// Device `index`, current for this thread from now on. kUnsupported unless it is an SM90.
Result<DeviceProperties> open_device(int32_t index);

// Lets kernels and copies of this thread's device reach the memory of device `other`, which is
// another one of the same host. kUnsupported where they are not connected.
Result<void> reach_device(int32_t other);

// What the last calls of this thread came to, kernels launched so far included where they have
// run. `what` names the work, for the message.
Result<void> check_launch(const char* what);

}  // namespace galley::kernels::cuda
