// Launches of expert_few_rows.cuh.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/expert_few_rows.cuh"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

template <class Form>
void launch(Stream stream, const ExpertRowsArguments& args) {
  const auto kernel = expert_few_rows_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
  // As many blocks as choices: none has items of more than two experts.
  const int32_t blocks = std::max(limits.blocks, args.rows * args.top_k);
  launch_kernel(kernel, {blocks, Form::kThreads, size_t{Form::kSharedBytes}}, stream, args);
}

}  // namespace

bool takes_expert_rows(const FoldShape& shape, int64_t rows, int64_t top_k) {
  using Form = ExpertRowsForm<ResultForm::kBf16, 8>;
  return rows <= kExpertFewRows && top_k <= Form::kChoicesMax / kExpertFewRows &&
         shape.chunks() % 2 == 0 && shape.chunks() > Form::kDepth &&
         shape.chunks() <= Form::kChunksMax && shape.slots() <= Form::kItemsMax * kItemSlots;
}

void expert_rows_product(Stream stream, ResultForm form, const ExpertRowsArguments& args) {
  CHECK(form != ResultForm::kF32 && args.rows <= kExpertFewRows);
  if (form == ResultForm::kSwiGlu) {
    CHECK(args.values == nullptr);
    launch<ExpertRowsForm<ResultForm::kSwiGlu, 8>>(stream, args);
  } else if (args.values == nullptr || args.rows <= 4) {
    launch<ExpertRowsForm<ResultForm::kBf16, 8>>(stream, args);
  } else {
    launch<ExpertRowsForm<ResultForm::kBf16, 16>>(stream, args);
  }
}

}  // namespace galley::kernels::cuda
