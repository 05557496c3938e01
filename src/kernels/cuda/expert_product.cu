// The forms of the fp4 product, and which of them a number of rows gets.
#include "kernels/cuda/grouped_narrow.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

template <ResultForm kResult>
void launch(Stream stream, int32_t block_tokens, const ProductArguments& args) {
  // Strips are worth their own kernel where tiles of four would begin a second wave.
  using Narrow = NarrowForm<kResult>;
  static const LaunchLimits narrow_limits =
      LaunchLimits::of(grouped_narrow_kernel<Narrow>, Narrow::kThreads, Narrow::kSharedBytes, 1);
  const int32_t active = args.experts < block_tokens ? args.experts : block_tokens;
  if (block_tokens <= 8 && args.chunks <= Narrow::kChunksMax &&
      active * (args.slots / kTileSlots) > narrow_limits.blocks) {
    launch_blocks(grouped_narrow_kernel<Narrow>, stream, narrow_limits.blocks, Narrow::kThreads,
                  Narrow::kSharedBytes, 1, args);
  } else if (block_tokens <= 80) {
    using Form = ProductForm<true, 4, 80, kResult, false>;
    const auto kernel = grouped_product_kernel<Form>;
    static const LaunchLimits limits =
        LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
    launch_blocks(kernel, stream, limits.blocks, Form::kThreads, Form::kSharedBytes, 1, args);
  } else {
    using Form = ProductForm<true, 2, 160, kResult, true>;
    const auto kernel = grouped_product_kernel<Form>;
    static const LaunchLimits limits =
        LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
    launch_blocks(kernel, stream, limits.blocks, Form::kThreads, Form::kSharedBytes, 1, args);
  }
}

}  // namespace

int32_t expert_block_tokens(int64_t choices, int32_t experts) {
  if (choices <= 8) return 8;
  return choices <= static_cast<int64_t>(experts) * 100 ? 80 : 160;
}

void expert_product(Stream stream, ResultForm form, int32_t block_tokens,
                    const ProductArguments& args) {
  switch (form) {
    case ResultForm::kF32:
      return launch<ResultForm::kF32>(stream, block_tokens, args);
    case ResultForm::kBf16:
      return launch<ResultForm::kBf16>(stream, block_tokens, args);
    case ResultForm::kSwiGlu:
      return launch<ResultForm::kSwiGlu>(stream, block_tokens, args);
  }
}

}  // namespace galley::kernels::cuda
