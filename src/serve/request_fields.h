// Fields that every way of asking for an answer shares, read from JSON: how to
// choose tokens and where to stop. null means absent. Errors name the path.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"

namespace galley::serve {

constexpr int32_t kInt32Max = std::numeric_limits<int32_t>::max();

// The member that is there and not null.
std::optional<JsonValue> given(const JsonValue& object, std::string_view key);

Result<std::optional<int32_t>> read_int(const JsonValue& object, std::string_view key,
                                        int32_t smallest, int32_t largest = kInt32Max);
// `fallback` when the member is not given.
Result<bool> read_bool(const JsonValue& object, std::string_view key, bool fallback);
Result<std::string> read_string(const JsonValue& object, std::string_view key);

// The members of a list of at most `most`; none when it is not given.
Result<std::vector<JsonValue>> read_list(const JsonValue& object, std::string_view key,
                                         size_t most);

// temperature, top_p, min_p, top_k, the three penalties and logit_bias; not the seed. Numbers
// are only read here: engine::validate() knows their ranges.
Result<void> read_sampling(const JsonValue& object, engine::SamplingOptions& sampling);

// A string or a list of them, within stop_text.h's bounds.
Result<std::vector<std::string>> read_stop_texts(const JsonValue& object, std::string_view key);

// Token ids, at least one.
Result<std::vector<int32_t>> read_ids(const JsonValue& list);

}  // namespace galley::serve
