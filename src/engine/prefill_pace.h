// How many prompt rows a step may take while others decode, so that their
// tokens keep coming: learned from how long steps take.
//
// A step of decode rows alone takes d, each prompt row that runs every layer b more
// (others count by their share, row_cost.h). Both
// come from a least-squares line through the last steps that decoded, with
// older steps fading. Knows numbers only; whoever has a clock feeds it. Chunking
// never changes a token, so neither does this.
#pragma once

#include <cstdint>

namespace galley::engine {

struct PrefillPaceOptions {
  int32_t rows_max = 512;   // of a step
  int32_t rows_min = 16;    // prompts move on, whatever it costs
  int32_t rows_first = 64;  // until something was measured
  // The longest step, in decode-only steps. More lets prompts keep more of their lone rate; the
  // bars are half of it, and p99 of the time between tokens within three medians.
  double stretch_max = 2.6;
};

class PrefillPace {
 public:
  explicit PrefillPace(const PrefillPaceOptions& options)
      : options_(options), rows_(options.rows_first) {}

  // A step took `seconds`. Steps in which nobody decodes tell nothing and are ignored.
  void note(double rows, int32_t decode_rows, double seconds);

  int32_t rows_beside_decode() const { return rows_; }
  // Seconds; 0 until known.
  double decode_step() const { return decode_step_; }
  double prefill_row() const { return prefill_row_; }

 private:
  PrefillPaceOptions options_;
  int32_t rows_;
  double decode_step_ = 0;
  double prefill_row_ = 0;
  // Fading sums over steps: of 1, p, t, p p and p t.
  double count_ = 0;
  double rows_sum_ = 0;
  double time_sum_ = 0;
  double rows_squared_ = 0;
  double rows_time_ = 0;
};

}  // namespace galley::engine
