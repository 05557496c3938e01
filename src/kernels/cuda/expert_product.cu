// The forms of the fp4 product, and which of them a number of rows gets.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/expert_few_rows.cuh"
#include "kernels/cuda/expert_many_rows.cuh"
#include "kernels/cuda/expert_row_tiles.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

template <ResultForm kResult>
void launch(Stream stream, int32_t block_tokens, const ProductArguments& args) {
  using FewRows = ExpertRowsForm<kResult, 8, true>;
  if (block_tokens <= 8 && FewRows::takes(args.slots, args.chunks)) {
    launch_few_rows<FewRows>(stream, 8, ExpertRowsArguments{args});
  } else if (block_tokens <= 80) {
    using Form = ProductForm<4, 80, kResult>;
    const auto kernel = grouped_product_kernel<Form>;
    static const LaunchLimits limits =
        LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
    launch_blocks(kernel, stream, limits.blocks, Form::kThreads, Form::kSharedBytes, 1, args);
  } else {
    if (block_tokens == kMixedBlocks) {
      using Form = RowTilesForm<kResult>;
      const auto kernel = expert_row_tiles_kernel<Form>;
      static const LaunchLimits limits =
          LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
      CHECK(args.outputs % 4 == 0 && args.y_stride % 4 == 0);
      launch_blocks(kernel, stream, limits.blocks, Form::kThreads, Form::kSharedBytes, 1, args);
    }
    using Form = ManyRowsForm<kResult>;
    const auto kernel = expert_many_rows_kernel<Form>;
    static const LaunchLimits limits =
        LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
    // Whole pieces of 16 bytes of a row are stored.
    CHECK(args.outputs % 8 == 0 && args.y_stride % 8 == 0);
    launch_blocks(kernel, stream, limits.blocks, Form::kThreads, Form::kSharedBytes, 1, args);
  }
}

}  // namespace

int32_t expert_block_tokens(int64_t choices, int32_t experts) {
  // Measured on one H200. Few choices make few tiles, and two launches two last rounds; units that
  // are not full cost most where experts have few of them.
  const int64_t mixed_from = std::max<int64_t>(5000, experts * int64_t{kManyRowsBlock});
  if (choices <= 8) return 8;
  if (choices <= static_cast<int64_t>(experts) * 72) return 80;
  return choices < mixed_from ? kManyRowsBlock : kMixedBlocks;
}

void expert_product(Stream stream, ResultForm form, int32_t block_tokens,
                    const ProductArguments& args) {
  CHECK(form != ResultForm::kF32);  // experts' results are bf16
  if (form == ResultForm::kSwiGlu) {
    launch<ResultForm::kSwiGlu>(stream, block_tokens, args);
  } else {
    launch<ResultForm::kBf16>(stream, block_tokens, args);
  }
}

}  // namespace galley::kernels::cuda
