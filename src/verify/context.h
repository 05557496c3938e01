// What every part of a verification works with.
#pragma once

#include <optional>
#include <string>

#include "verify/golden.h"
#include "verify/report.h"
#include "verify/runner.h"
#include "verify/tolerances.h"

namespace galley::verify {

struct Context {
  const Golden& golden;
  const model::Model& model;
  Runner& runner;
  const std::optional<Tolerances>& limits;
  Report& report;

  const model::Config& config() const { return model.config(); }
};

// Section names, sharpest first: the order in which checks run and are printed.
inline constexpr const char* kConstants = "constants";
inline constexpr const char* kLayerAlone = "layer alone";
inline constexpr const char* kState = "state";
inline constexpr const char* kWholeModel = "whole model";
inline constexpr const char* kTrace = "trace";
inline constexpr const char* kUnits = "units";

// "trace71.layer2.what", the name of a trace tensor.
std::string layer_tensor(const std::string& tag, int32_t layer, std::string_view what);

// The prompt of a case: token ids, and for an image case its spans and the rows they start
// from. `embed_in` [T, d] must outlive the prompt.
Prompt prompt_of(const GoldenCase& one, const Table<kernels::Bf16>* embed_in);

// 1: constants.cc
Result<void> check_constants(Context& context);
// 2: layer_alone.cc
Result<void> check_layers_alone(Context& context);
// 3 and 4: whole_model.cc
Result<void> check_whole_model(Context& context);

}  // namespace galley::verify
