// The forms of the fp8 product, and which of them a number of rows gets: few rows
// (dense_few_rows.cuh) or many (dense_tiles.cuh).
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/dense_few_rows.cuh"
#include "kernels/cuda/dense_tiles.cuh"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

// Above these rows the persistent kernel is faster: 128 rows of 5,120 x 8,192 take 20.7 us here and
// 35 there, 256 rows 41 and 35; split sums of 1,280 x 5,120 16 and 26, 384 rows 23.5 and 26.
constexpr int32_t kFewRowsMax = 128;
constexpr int32_t kFewSplitRowsMax = 384;
// From so many strips on, blocks of two find enough of them for the whole device.
constexpr int32_t kManyStrips = 256;

// One matrix of a set as a product of its own.
ProductArguments arguments_of(const DenseSet& set, const DensePart& part) {
  ProductArguments args = set.common;
  args.weights = part.weights;
  args.y = part.y;
  args.y_stride = part.y_stride;
  args.slots = part.slots;
  args.outputs = part.outputs;
  args.groups = dense_sum_groups(part.slots, args.chunks);
  return args;
}

int32_t strips_of(const DenseSet& set) {
  int32_t slots = 0;
  for (int32_t i = 0; i < set.count; ++i) slots += set.parts[i].slots;
  return slots / kStripSlots;
}

template <class Form>
void launch_few_rows(Stream stream, const DenseSet& set) {
  const auto kernel = dense_few_rows_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
  static_cast<void>(limits);
  const int32_t token_blocks = (set.common.rows + Form::kTokens - 1) / Form::kTokens;
  const int32_t blocks = strips_of(set) / Form::kStrips * token_blocks * Form::kGroups;
  const auto more =
      static_cast<int32_t>((set.copy_count + Form::kGroups - 1) / Form::kGroups * Form::kGroups);
  if (blocks + more == 0) return;
  launch_kernel(
      kernel,
      {blocks + more, Form::kThreads, static_cast<size_t>(Form::kSharedBytes), Form::kGroups},
      stream, set, blocks);
}

// Whether the copy engine can store to y: everything is a multiple of 16 bytes.
bool takes_boxes(const ProductArguments& args) {
  return args.row_weight == nullptr && args.outputs % 8 == 0 && args.y_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(args.y) % 16 == 0;
}

template <class Form>
void launch_tiles(Stream stream, const ProductArguments& args) {
  const auto kernel = dense_tiles_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, Form::kCluster);
  // The threads that copy are less than a tile ahead.
  CHECK(args.chunks > Form::kStages);
  CUtensorMap map = {};
  if constexpr (Form::kBoxes) {
    map = matrix_map(args.y, args.rows, args.outputs, args.y_stride * 2, 2, 64, Form::kBoxColumns);
  }
  launch_kernel(kernel,
                {limits.blocks, Form::kThreads, static_cast<size_t>(Form::kSharedBytes),
                 static_cast<uint32_t>(Form::kCluster)},
                stream, args, map);
}

// Rounds of the device's clusters, in turns of tiles of 128 slots: one of 256 takes 1.85 of them.
bool takes_wide_tiles(const ProductArguments& args) {
  constexpr int32_t kMultiprocessors = 132;
  const auto rounds = [](int32_t tiles, int32_t at_once) {
    return (tiles + at_once - 1) / at_once;
  };
  const int32_t blocks = (args.rows + 127) / 128;
  const int32_t narrow = rounds(args.slots / 128 * blocks, kMultiprocessors);
  const int32_t wide = rounds(args.slots / 256 * ((blocks + 1) / 2), kMultiprocessors / 2);
  return wide * 1.85 <= narrow;
}

// Many rows of each matrix.
template <bool kGrouped, ResultForm kResult>
void launch_many_rows(Stream stream, const DenseSet& set) {
  for (int32_t i = 0; i < set.count; ++i) {
    const ProductArguments args = arguments_of(set, set.parts[i]);
    if constexpr (kResult != ResultForm::kF32) {
      if (takes_boxes(args)) {
        if constexpr (!kGrouped) {
          if (takes_wide_tiles(args)) {
            launch_tiles<TileForm<2, kResult, false, true>>(stream, args);
            continue;
          }
        }
        launch_tiles<TileForm<1, kResult, kGrouped, true>>(stream, args);
        continue;
      }
    }
    launch_tiles<TileForm<1, kResult, kGrouped, false>>(stream, args);
  }
}

// Sums of one part: 64 strips or more. As few blocks as multiprocessors take all of the shared
// memory, since one's copies in flight are then what its bandwidth comes from.
template <ResultForm kResult>
void launch_whole(Stream stream, const DenseSet& set) {
  const int32_t rows = set.common.rows;
  if (strips_of(set) >= kManyStrips) {
    if (rows <= 8) return launch_few_rows<FewRowsForm<8, 1, 2, 111, kResult, 4>>(stream, set);
    if (rows <= 32) return launch_few_rows<FewRowsForm<32, 1, 1, 111, kResult, 4>>(stream, set);
    if (rows <= 64) return launch_few_rows<FewRowsForm<64, 1, 2, 111, kResult, 1>>(stream, set);
  } else {
    if (rows <= 8) return launch_few_rows<FewRowsForm<8, 1, 1, 220, kResult, 4>>(stream, set);
    if (rows <= 32) return launch_few_rows<FewRowsForm<32, 1, 1, 220, kResult, 4>>(stream, set);
    if (rows <= 64) return launch_few_rows<FewRowsForm<64, 1, 1, 220, kResult, 4>>(stream, set);
  }
  if (rows <= kFewRowsMax) {
    return launch_few_rows<FewRowsForm<128, 1, 1, 220, kResult, 2>>(stream, set);
  }
  launch_many_rows<false, kResult>(stream, set);
}

// Sums of several parts, a block of a cluster each.
template <int kGroups, ResultForm kResult>
void launch_split(Stream stream, const DenseSet& set) {
  const int32_t rows = set.common.rows;
  if (rows <= 8) return launch_few_rows<FewRowsForm<8, kGroups, 1, 74, kResult, 4>>(stream, set);
  if (rows <= 32) return launch_few_rows<FewRowsForm<32, kGroups, 1, 74, kResult, 4>>(stream, set);
  if (rows <= kFewSplitRowsMax) {
    return launch_few_rows<FewRowsForm<64, kGroups, 1, 74, kResult, 1>>(stream, set);
  }
  launch_many_rows<true, kResult>(stream, set);
}

template <ResultForm kResult>
void launch(Stream stream, int32_t groups, const DenseSet& set) {
  switch (groups) {
    case 1:
      return launch_whole<kResult>(stream, set);
    case 2:
      return launch_split<2, kResult>(stream, set);
    case 4:
      return launch_split<4, kResult>(stream, set);
    default:
      return launch_split<8, kResult>(stream, set);
  }
}

}  // namespace

int32_t dense_sum_groups(int64_t slots, int64_t chunks) {
  const int64_t strips = slots / kStripSlots;
  if (strips >= 64) return 1;
  int32_t groups = 1;
  while (groups < 8 && strips * groups < 128 && chunks >= groups * 4) groups *= 2;
  return groups;
}

bool dense_takes_copies(int64_t rows) { return rows <= kFewRowsMax; }

void dense_products(Stream stream, const DenseSet& set) {
  CHECK(set.copy_count == 0 || dense_takes_copies(set.common.rows));
  DenseSet left = set;
  while (left.count > 0) {
    // Those with as many parts as the first one, together.
    DenseSet now = left;
    now.count = 0;
    const int32_t groups = dense_sum_groups(left.parts[0].slots, left.common.chunks);
    int32_t others = 0;
    for (int32_t i = 0; i < left.count; ++i) {
      const DensePart part = left.parts[i];
      if (dense_sum_groups(part.slots, left.common.chunks) == groups) {
        now.parts[now.count++] = part;
      } else {
        left.parts[others++] = part;
      }
    }
    left.count = others;
    left.copy_count = 0;  // with the first launch
    switch (set.form) {
      case ResultForm::kF32:
        launch<ResultForm::kF32>(stream, groups, now);
        break;
      case ResultForm::kBf16:
        launch<ResultForm::kBf16>(stream, groups, now);
        break;
      case ResultForm::kSwiGlu:
        launch<ResultForm::kSwiGlu>(stream, groups, now);
        break;
    }
  }
}

void dense_product(Stream stream, ResultForm form, ProductArguments args) {
  DenseSet set;
  set.form = form;
  set.common = args;
  set.parts[0] = {args.weights, args.y, args.y_stride, args.slots, args.outputs};
  set.count = 1;
  dense_products(stream, set);
}

}  // namespace galley::kernels::cuda
