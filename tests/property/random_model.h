// A checkpoint of random weights for any config, so that properties are tested
// on layer roles that no stored checkpoint has.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/model.h"

namespace galley::testing {

// The config of golden g1-micro-text with `change` applied to its text_config,
// its tokenizer, and weights drawn with `seed`, scaled so that no layer vanishes
// or saturates; into an existing empty directory.
void write_random_model(const std::string& directory,
                        const std::function<void(nlohmann::json& text)>& change, uint32_t seed);
std::unique_ptr<model::Model> random_model(const std::function<void(nlohmann::json& text)>& change,
                                           uint32_t seed);

}  // namespace galley::testing
