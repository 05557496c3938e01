// What prompt rows cost a step, in rows that run every layer.
//
// With decoder replay a row before the last window runs the layers up to the
// decoder's source only, and so do rows replayed after a prefix hit: they count by
// the share of the layers that they run (spec/model.md 8.2, 8.3), and so do tail
// rows whose inputs a snapshot held. So a step of
// short prompts, which run everything, is not taken for one of a long prompt.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/generator_options.h"

namespace galley::engine {

class RowCost {
 public:
  explicit RowCost(const GeneratorOptions& options) {
    const bool cuts = options.replay != model::DecoderReplay::kOff && options.layers > 0 &&
                      options.decoder_source > 0;
    if (cuts) cut_ = static_cast<double>(options.decoder_source) / options.layers;
  }

  // Of the rows [first, end) of a prompt whose rows from `tail_begin` on run every layer.
  double of(int64_t first, int64_t end, int64_t tail_begin) const {
    const int64_t cut = std::clamp<int64_t>(tail_begin - first, 0, end - first);
    return static_cast<double>(cut) * cut_ + static_cast<double>(end - first - cut);
  }

  // Of rows that run only the layers behind the cut, their inputs having been held.
  double of_held(int64_t count) const { return static_cast<double>(count) * (1 - cut_); }

  // How many of them `budget` pays for.
  int64_t affordable(int64_t first, int64_t end, int64_t tail_begin, double budget) const {
    const int64_t cut = std::clamp<int64_t>(tail_begin - first, 0, end - first);
    const double cut_cost = static_cast<double>(cut) * cut_;
    if (budget < cut_cost) return static_cast<int64_t>(budget / cut_);
    return std::min(end - first, cut + static_cast<int64_t>(budget - cut_cost));
  }

 private:
  double cut_ = 1;  // of a row that stops at the decoder's source
};

}  // namespace galley::engine
