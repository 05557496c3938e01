// The forms of the fp4 product, and which of them a number of rows gets.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/expert_few_rows.cuh"
#include "kernels/cuda/expert_many_rows.cuh"
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
    if (block_tokens == kMixedBlocks) {  // of the large experts; the others follow
      using Form = RowTilesForm<kResult>;
      launch_tiles<Form>(stream, expert_row_tiles_kernel<Form>, args);
    }
    using Form = ManyRowsForm<kResult>;
    launch_tiles<Form>(stream, expert_many_rows_kernel<Form>, args);
  }
}

}  // namespace

int32_t expert_block_tokens(int64_t choices, int32_t experts) {
  // Measured on one H200. Few choices make few tiles, and two launches two last rounds; units that
  // are not full cost most where experts have few of them. Three blocks of about 110 rows are
  // faster than two of 165.
  const int64_t mixed_from = std::max<int64_t>(5000, experts * int64_t{kManyRowsBlock});
  const auto most = [&](int64_t rows) { return choices <= experts * rows; };  // of an expert, even
  if (choices <= 8) return 8;
  if (most(76)) return 80;
  if (most(112) || (choices < mixed_from && most(352) && !most(304))) return kPairStripsBlock;
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
