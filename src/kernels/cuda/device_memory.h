// A device's memory as kernels/memory.h wants it, in order with one stream.
#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/memory.h"

namespace galley::kernels::cuda {

// `stream` outlives it. Transfers first call `flush`, which hands pending work to the stream, and
// wait for it.
std::unique_ptr<Memory> make_device_memory(Stream stream, std::function<void()> flush);

}  // namespace galley::kernels::cuda
