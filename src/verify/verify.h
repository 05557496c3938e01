// Golden directories against a backend: the checks of the golden README in its
// order, one report a directory.
//
// Knows neither command line nor how a backend is made: the caller hands in the
// kernels. Decoder replay is off throughout.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "verify/report.h"

namespace galley::verify {

// The golden directories that `path` means: itself (a model or the units), or those directly in
// it, by name. kNotFound when there are none.
Result<std::vector<std::string>> golden_directories(const std::string& path);

// One of them. An error is a file that is missing, malformed or does not fit the model.
Result<Report> verify_directory(const std::string& directory, kernels::Ops& ops);

// The class of limits that a backend is judged by: "reference_rounding" or "production".
std::string_view limits_kind(std::string_view backend);

}  // namespace galley::verify
