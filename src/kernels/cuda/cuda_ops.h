// kernels::Ops on one SM90 device.
//
// Owned by one thread, which also computes the steps; all work goes to one stream
// in the order of the calls. Nothing waits but memory() transfers and finish().
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

// On device `index`. kUnsupported without a driver, a card or CUDA in the build (device.h).
Result<std::unique_ptr<Ops>> make_cuda_ops(int32_t index);

// How many commands those have given to the device or listed so far, a launch or a few each: tests
// see by it what became one.
int64_t command_count(const Ops& ops);

}  // namespace galley::kernels::cuda
