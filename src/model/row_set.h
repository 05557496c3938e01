// The rows that run a layer together: their positions, whose they are, and the
// rotary angles of both kinds of layer.
//
// A step has one set for the layers up to the cut of decoder replay and, when it
// trims, a smaller one for those after it. Refilled each step without allocating.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "model/rope_cache.h"
#include "model/row_buffer.h"
#include "model/step_plan.h"

namespace galley::model {

// Consecutive rows of one sequence.
struct RowSegment {
  int32_t sequence = 0;  // its place in the plan
  int32_t begin = 0;     // its first row in the set
  int32_t count = 0;
  int64_t first_position = 0;
};

struct RopeTables {
  RopeCache window;      // layers of ratio 0
  RopeCache compressed;  // layers of ratio > 0
};

class RowSet {
 public:
  // Angles are filled in memory of `host`.
  RowSet(int64_t rows_max, int32_t sequences_max, int32_t rotary, BufferSource& host);

  void clear();
  // The rows of `sequence` from first_position to the plan's end; may begin in its look-back.
  void add(int32_t sequence, const SequencePlan& plan, int64_t first_position);
  // Stages them for this step's kernels.
  void fill_angles(RopeTables& tables, kernels::Ops& ops);

  int64_t rows() const { return static_cast<int64_t>(positions_.size()); }
  std::span<const RowSegment> segments() const { return segments_; }
  // Null when the set has no row of the sequence.
  const RowSegment* segment_of(int32_t sequence) const;

  std::span<const int64_t> positions() const { return positions_; }
  std::span<const int32_t> sequences() const { return sequences_; }
  std::span<const uint8_t> in_image() const { return in_image_; }
  std::span<const uint8_t> alive() const { return alive_; }
  const kernels::RopeAngles& window_angles() const { return window_angles_; }
  const kernels::RopeAngles& compressed_angles() const { return compressed_angles_; }

 private:
  std::vector<RowSegment> segments_;
  std::vector<int32_t> segment_of_sequence_;  // [sequences_max], number + 1, 0 = none
  std::vector<int64_t> positions_;            // all of these reserved to rows_max
  std::vector<int32_t> sequences_;
  std::vector<uint8_t> in_image_;
  std::vector<uint8_t> alive_;
  RowBuffer<float> angles_[4];
  kernels::RopeAngles window_angles_;
  kernels::RopeAngles compressed_angles_;
};

// Compressed entries of one ratio that this step completes, in plan order.
class GroupSet {
 public:
  GroupSet(int32_t ratio, int64_t rows_max, int32_t rotary, BufferSource& host);

  void clear();
  // The groups whose last member is a row of the plan at or after global_begin.
  void add(int32_t sequence, const SequencePlan& plan);
  void fill_angles(RopeCache& table, kernels::Ops& ops);

  int32_t ratio() const { return ratio_; }
  int64_t count() const { return static_cast<int64_t>(entries_.size()); }
  std::span<const int64_t> entries() const { return entries_; }  // j
  std::span<const int32_t> sequences() const { return sequences_; }
  // Of each group's first position.
  const kernels::RopeAngles& angles() const { return staged_; }

 private:
  int32_t ratio_;
  std::vector<int64_t> entries_;
  std::vector<int64_t> positions_;
  std::vector<int32_t> sequences_;
  RowBuffer<float> cos_;
  RowBuffer<float> sin_;
  kernels::RopeAngles staged_;
};

}  // namespace galley::model
