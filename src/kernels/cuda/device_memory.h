// A device's memory as kernels/memory.h wants it, in order with one stream.
#pragma once

#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/memory.h"

namespace galley::kernels::cuda {

// `stream` outlives it. Transfers wait for what the stream was given before.
std::unique_ptr<Memory> make_device_memory(Stream stream);

}  // namespace galley::kernels::cuda
