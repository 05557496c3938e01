// The forms of the fp8 product, and which of them a number of rows gets.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/dense_few_rows.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kFewRowsMax = 256;

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

template <int kTokens, int kGroups, ResultForm kResult>
void launch_few_rows(Stream stream, const DenseSet& set) {
  using Form = FewRowsForm<kTokens, kGroups, 1, 74, kResult>;
  const auto kernel = dense_few_rows_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
  static_cast<void>(limits);
  int32_t tiles = 0;
  for (int32_t i = 0; i < set.count; ++i) tiles += set.parts[i].slots;
  tiles /= kStripSlots * Form::kStrips;
  const int32_t blocks = tiles * ((set.common.rows + kTokens - 1) / kTokens) * kGroups;
  const auto more = static_cast<int32_t>((set.copy_count + kGroups - 1) / kGroups * kGroups);
  if (blocks + more == 0) return;
  launch_kernel(kernel,
                {blocks + more, Form::kThreads, static_cast<size_t>(Form::kSharedBytes), kGroups},
                stream, set, blocks);
}

template <int kGroups, ResultForm kResult>
void launch_groups(Stream stream, const DenseSet& set) {
  if (set.common.rows <= kFewRowsMax) {
    if (set.common.rows <= 8) return launch_few_rows<8, kGroups, kResult>(stream, set);
    if (set.common.rows <= 32) return launch_few_rows<32, kGroups, kResult>(stream, set);
    return launch_few_rows<64, kGroups, kResult>(stream, set);
  }
  using Form =
      ProductForm<false, 2, (kGroups > 1 ? 128 : 192), 1, kResult, kGroups == 1, (kGroups > 1)>;
  const auto kernel = grouped_product_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, Form::kCluster);
  for (int32_t i = 0; i < set.count; ++i) {
    launch_blocks(kernel, stream, limits.blocks, Form::kThreads, Form::kSharedBytes, Form::kCluster,
                  arguments_of(set, set.parts[i]));
  }
}

template <ResultForm kResult>
void launch(Stream stream, int32_t groups, const DenseSet& set) {
  switch (groups) {
    case 1:
      return launch_groups<1, kResult>(stream, set);
    case 2:
      return launch_groups<2, kResult>(stream, set);
    case 4:
      return launch_groups<4, kResult>(stream, set);
    default:
      return launch_groups<8, kResult>(stream, set);
  }
}

}  // namespace

int32_t dense_sum_groups(int64_t slots, int64_t chunks) {
  int32_t groups = 1;
  while (groups < 8 && slots / kStripSlots * groups < 256 && chunks >= groups * 4) groups *= 2;
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
