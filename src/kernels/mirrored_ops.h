// Kernels of a device for callers whose every pointer is the host's.
//
// For tests and verification of single operations: each call's inputs are copied to
// the device, the operation runs there, and what it may have written comes back.
// Slow, and fatal (CHECK) when the device fails.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace galley::kernels {

// `device` outlives the result.
std::unique_ptr<Ops> make_mirrored_ops(Ops& device);

}  // namespace galley::kernels
