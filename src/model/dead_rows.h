// Rows that nobody wants, so that a step keeps the shape of an earlier one when sequences have
// ended: launches of the same shapes are a graph that is there already
// (kernels/cuda/graph_cache.h), and a row's bits do not depend on the rows beside it.
//
// They stand behind the plans of a step that only decodes, all of them in a slot and a page that no
// sequence has, and see nothing but themselves. Their positions are such that each ratio's count of
// groups is what it was, too. What they compute is read by nobody: they race with each other for
// that slot. Owned by one thread; fixed storage.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/kv_cache.h"
#include "model/step_plan.h"

namespace galley::model {

class DeadRows {
 public:
  // Of a shape that is kept: fewer rows have launches of their own for so few.
  static constexpr int64_t kRowsMin = 8;
  // More rows are launched as they go (kernels/cuda/cuda_ops.cc), and may not await their ids.
  static constexpr int64_t kRowsMax = 512;
  // A new shape costs what some four steps do in dead rows: so many of these a shape is kept for.
  static constexpr int64_t kStepsPerShape = 4;

  // Without a spare slot in the cache there are never any.
  DeadRows(const KvCache& cache, int32_t sequences_max);

  // The plans, or a copy of them with dead ones behind, until the next call. Steps of `side` 0 and
  // 1 take turns, since groups end in every second step of a sequence and arguments lie in two
  // places.
  std::span<const SequencePlan> behind(std::span<const SequencePlan> plans, size_t side);

 private:
  struct Shape {
    int64_t rows = 0;
    std::vector<int64_t> groups;  // [ratios]
  };

  // Has the plans' own shape from now on.
  std::span<const SequencePlan> renew(std::span<const SequencePlan> plans, size_t side);
  void measure(std::span<const SequencePlan> plans, Shape& shape) const;
  bool reaches(const Shape& from, const Shape& to) const;
  SequencePlan dead(const SequencePlan& like, int64_t position) const;

  int32_t slot_;
  std::array<int32_t, 1> page_;
  int32_t page_tokens_;
  bool may_;
  std::vector<int32_t> ratios_;
  Shape now_;
  std::array<Shape, 2> kept_;
  std::array<int64_t, 2> spent_ = {};  // dead rows since that shape is kept
  std::vector<SequencePlan> plans_;
};

}  // namespace galley::model
