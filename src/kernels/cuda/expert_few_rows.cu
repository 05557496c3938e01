// Launches of expert_few_rows.cuh.
#include "base/check.h"
#include "kernels/cuda/expert_few_rows.cuh"

namespace galley::kernels::cuda {

bool takes_expert_rows(const FoldShape& shape, int64_t rows, int64_t top_k) {
  using Form = ExpertRowsForm<ResultForm::kBf16, 8>;
  return rows <= kExpertFewRows && top_k <= Form::kChoicesMax / kExpertFewRows &&
         Form::takes(shape.slots(), shape.chunks());
}

void expert_rows_product(Stream stream, ResultForm form, const ExpertRowsArguments& args) {
  CHECK(form != ResultForm::kF32 && args.rows <= kExpertFewRows);
  const int32_t choices = args.rows * args.top_k;
  if (form == ResultForm::kSwiGlu) {
    CHECK(args.values == nullptr);
    launch_few_rows<ExpertRowsForm<ResultForm::kSwiGlu, 8>>(stream, choices, args);
  } else if (args.values == nullptr || args.rows <= 4) {
    launch_few_rows<ExpertRowsForm<ResultForm::kBf16, 8>>(stream, choices, args);
  } else {
    launch_few_rows<ExpertRowsForm<ResultForm::kBf16, 16>>(stream, choices, args);
  }
}

}  // namespace galley::kernels::cuda
