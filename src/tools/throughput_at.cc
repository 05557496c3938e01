#include "tools/throughput_at.h"

namespace galley::tools {

std::optional<double> throughput_at(std::span<const BatchTime> batches, double tokens_per_s) {
  if (batches.empty()) return std::nullopt;
  const double seconds = batches.front().tokens_each / tokens_per_s;  // that a step may take
  if (batches.front().seconds > seconds) return std::nullopt;
  for (size_t i = 1; i < batches.size(); ++i) {
    const BatchTime& low = batches[i - 1];
    const BatchTime& high = batches[i];
    if (high.seconds <= seconds) continue;
    const double share = (seconds - low.seconds) / (high.seconds - low.seconds);
    return (low.sequences + share * (high.sequences - low.sequences)) * tokens_per_s;
  }
  // Nobody measured a larger one: its users are faster than asked for.
  return batches.back().sequences * batches.back().tokens_each / batches.back().seconds;
}

}  // namespace galley::tools
