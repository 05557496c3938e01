// How many prompt rows a step may take while others decode, so that their
// tokens keep coming: learned from how long steps take.
//
// A step of decode rows alone takes d, each prompt row that runs every layer b more
// (others count by their share, row_cost.h). d is the median of the last steps with few
// prompt rows or none, b that of the last ones with many. Each remembers its own: long
// prompts are rare, and what the last one taught is not forgotten while streams have the
// machine to themselves. Medians, since what a busy machine adds to some steps is not
// what steps cost. Knows numbers only; whoever has a clock feeds it. Chunking never
// changes a token, so neither does this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace galley::engine {

struct PrefillPaceOptions {
  int32_t rows_max = 512;   // of a step
  int32_t rows_min = 16;    // prompts move on, whatever it costs
  int32_t rows_first = 64;  // until something was measured
  // The longest step, in decode-only steps. More lets prompts keep more of their lone rate; the
  // bars are half of it, and p99 of the time between tokens within three medians.
  double stretch_max = 2.55;
};

class PrefillPace {
 public:
  explicit PrefillPace(const PrefillPaceOptions& options)
      : options_(options), rows_(options.rows_first) {}

  // A step took `seconds`. Steps in which nobody decodes tell nothing and are ignored.
  void note(double rows, int32_t decode_rows, double seconds);

  int32_t rows_beside_decode() const { return rows_; }
  // Seconds; 0 until known.
  double decode_step() const { return decode_step_.median(); }
  double prefill_row() const { return prefill_row_.median(); }

 private:
  class Recent {
   public:
    void add(double value);
    double median() const { return median_; }  // of the last values

   private:
    static constexpr size_t kCount = 48;  // some long prompts, or half a second of streams
    std::array<double, kCount> values_{};
    size_t added_ = 0;
    double median_ = 0;
  };

  PrefillPaceOptions options_;
  int32_t rows_;
  Recent decode_step_;
  int32_t decode_rows_ = 0;  // that it is of
  Recent prefill_row_;
  int32_t since_light_ = 0;  // steps since one had few prompt rows
};

}  // namespace galley::engine
