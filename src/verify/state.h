// Cache contents after a run against the stored ones: compressed KV, index keys,
// window rings, pending groups.
//
// Only measures. Stored values that are absent give std::nullopt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "verify/golden.h"
#include "verify/record_difference.h"
#include "verify/report.h"
#include "verify/runner.h"

namespace galley::verify {

// compress_kv (kGlobal) or index_key (kIndex) of an owner; `entries` must be there.
Result<std::optional<RecordDifference>> compare_entries(const Runner& runner,
                                                        const GoldenFile& file,
                                                        const std::string& tensor,
                                                        model::RecordKind kind, int32_t layer,
                                                        int64_t entries);
// The ring after `length` positions: its last min(W, length) of them.
Result<std::optional<RecordDifference>> compare_ring(const Runner& runner, const GoldenFile& file,
                                                     const std::string& tensor, int32_t layer,
                                                     int64_t length);
// The unfinished group: the largest relative error of a row of `half` (0 = kv, 1 = gate).
Result<std::optional<double>> compare_pending(const Runner& runner, const GoldenFile& file,
                                              const std::string& tensor, int32_t layer, int half,
                                              int64_t length);

// README 3: at least 99.5 % equal, the rest one quantiser step.
std::vector<Measure> state_measures(const RecordDifference& difference);
// A pending group is an f32 product of a bf16 row that may differ by an ulp in places.
inline constexpr double kPendingLimit = 0.002;

}  // namespace galley::verify
