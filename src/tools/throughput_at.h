// Tokens a second of one card at a given speed for each user, from steps measured at a few batch
// sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace galley::tools {

// A step of so many sequences, each of which gets so many tokens from it.
struct BatchTime {
  double sequences = 0;
  double seconds = 0;
  double tokens_each = 1;
};

// The largest batch whose users still get `tokens_per_s` each, between measured ones by straight
// lines, times that speed; at most the largest that was measured. Nothing: even the smallest is
// slower. `batches` ascend and have the same tokens_each.
std::optional<double> throughput_at(std::span<const BatchTime> batches, double tokens_per_s);

}  // namespace galley::tools
