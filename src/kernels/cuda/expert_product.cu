// The forms of the fp4 product, and which of them a number of rows gets.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/expert_few_rows.cuh"
#include "kernels/cuda/expert_pair_strips.cuh"
#include "kernels/cuda/expert_row_tiles.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

template <class Form>
void launch_tiles(Stream stream, void (*kernel)(ProductArguments), const ProductArguments& args) {
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
  launch_blocks(kernel, stream, limits.blocks, Form::kThreads, Form::kSharedBytes, 1, args);
}

template <ResultForm kResult>
void launch(Stream stream, int32_t block_tokens, const ProductArguments& args) {
  using FewRows = ExpertRowsForm<kResult, 8, true>;
  if (block_tokens <= 8 && FewRows::takes(args.slots, args.chunks)) {
    launch_few_rows<FewRows>(stream, 8, ExpertRowsArguments{args});
  } else if (block_tokens <= 80) {
    using Form = ProductForm<4, 80, kResult>;
    launch_tiles<Form>(stream, grouped_product_kernel<Form>, args);
  } else {
    CHECK(args.outputs % 8 == 0 && args.y_stride % 8 == 0);  // stores are of 16 bytes
    if (block_tokens == kPairStripsBlock) {
      using Form = PairStripsForm<kResult>;
      return launch_tiles<Form>(stream, expert_pair_strips_kernel<Form>, args);
    }
    CHECK(block_tokens == kRowTilesBlock);
    using Form = RowTilesForm<kResult>;
    launch_tiles<Form>(stream, expert_row_tiles_kernel<Form>, args);
  }
}

}  // namespace

int32_t expert_block_tokens(int64_t choices, int32_t experts) {
  // Measured on one H200: an expert's rows up to which a form is the fastest. Units of row tiles
  // that are not full cost most where experts have few of them.
  const auto most = [&](int64_t rows) { return choices <= experts * rows; };  // of an expert, even
  if (choices <= 8) return 8;
  if (most(76)) return 80;
  if (most(112)) return kPairStripsBlock;
  return kRowTilesBlock;
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
