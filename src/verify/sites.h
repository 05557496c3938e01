// Where inside a layer a deviation begins: the few values the trace stores of
// each site, for information.
#pragma once

#include <string>

#include "verify/captured.h"
#include "verify/context.h"

namespace galley::verify {

// One information line: the median relative error of each site that the trace has, in the order
// of computation. Suspect where one is above the layer's own limit.
Result<void> inform_sites(Context& context, const char* section, const std::string& tag,
                          int32_t layer, const CapturedLayer& captured);

}  // namespace galley::verify
