// The forms of the fp8 product, and which of them a number of rows gets.
#include "kernels/cuda/dense_few_rows.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kFewRowsMax = 256;

template <int kTokens, int kGroups, ResultForm kResult>
void launch_few_rows(Stream stream, const ProductArguments& args) {
  using Form = FewRowsForm<kTokens, kGroups, kResult>;
  const auto kernel = dense_few_rows_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
  static_cast<void>(limits);
  const int32_t items = args.slots / kStripSlots * ((args.rows + kTokens - 1) / kTokens);
  launch_blocks(kernel, stream, items * kGroups, Form::kThreads, Form::kSharedBytes, kGroups, args);
}

template <int kGroups, ResultForm kResult>
void launch_groups(Stream stream, const ProductArguments& args) {
  if (args.rows <= kFewRowsMax) {
    if (args.rows <= 8) return launch_few_rows<8, kGroups, kResult>(stream, args);
    if (args.rows <= 32) return launch_few_rows<32, kGroups, kResult>(stream, args);
    return launch_few_rows<64, kGroups, kResult>(stream, args);
  }
  using Form =
      ProductForm<false, 2, (kGroups > 1 ? 128 : 192), 1, kResult, kGroups == 1, (kGroups > 1)>;
  const auto kernel = grouped_product_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, Form::kCluster);
  launch_blocks(kernel, stream, limits.blocks, Form::kThreads, Form::kSharedBytes, Form::kCluster,
                args);
}

template <ResultForm kResult>
void launch(Stream stream, const ProductArguments& args) {
  switch (args.groups) {
    case 1:
      return launch_groups<1, kResult>(stream, args);
    case 2:
      return launch_groups<2, kResult>(stream, args);
    case 4:
      return launch_groups<4, kResult>(stream, args);
    default:
      return launch_groups<8, kResult>(stream, args);
  }
}

}  // namespace

int32_t dense_sum_groups(int64_t slots, int64_t chunks) {
  int32_t groups = 1;
  while (groups < 8 && slots / kStripSlots * groups < 256 && chunks >= groups * 4) groups *= 2;
  return groups;
}

void dense_product(Stream stream, ResultForm form, ProductArguments args) {
  args.groups = dense_sum_groups(args.slots, args.chunks);
  switch (form) {
    case ResultForm::kF32:
      return launch<ResultForm::kF32>(stream, args);
    case ResultForm::kBf16:
      return launch<ResultForm::kBf16>(stream, args);
    case ResultForm::kSwiGlu:
      return launch<ResultForm::kSwiGlu>(stream, args);
  }
}

}  // namespace galley::kernels::cuda
