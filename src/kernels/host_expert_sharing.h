// ExpertSharing of kernels that compute in host memory: other ranks are threads of this process.
#pragma once

#include <memory>

#include "kernels/expert_sharing.h"
#include "kernels/ops.h"

namespace galley::kernels {

// Every part is a call of ops.moe(), which outlives the result.
std::unique_ptr<ExpertSharing> make_host_sharing(Ops& ops);

}  // namespace galley::kernels
