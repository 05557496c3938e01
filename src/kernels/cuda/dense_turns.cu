// Which sets dense_turns.cuh computes, and their launch.
#include "base/check.h"
#include "kernels/cuda/dense_turns.cuh"
#include "kernels/cuda/launch_product.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kRowsMax = 8;
constexpr int32_t kMadeRowsMax = 2;   // more are faster with a launch of their own for Q8
constexpr int32_t kSlotsMax = 10240;  // two rounds of blocks
constexpr int32_t kChunksMin = 8;
// Of eight rows a step takes 12.46 ms so, 12.40 by few rows.
constexpr int32_t kSwiGluRowsMax = 2;
constexpr int32_t kSwiGluChunksMax = 40;

template <class Form>
void launch(Stream stream, const DenseSet& set) {
  const auto kernel = dense_turns_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
  static_cast<void>(limits);
  int32_t blocks = 0;
  for (int32_t i = 0; i < set.count; ++i) {
    blocks += (set.parts[i].slots / 8 + Form::kAtoms - 1) / Form::kAtoms;
  }
  launch_kernel(kernel,
                {blocks + static_cast<int32_t>(set.copy_count), Form::kThreads,
                 static_cast<size_t>(Form::kSharedBytes)},
                stream, set, blocks);
}

template <int kRows, bool kMakes>
void launch_form(Stream stream, const DenseSet& set) {
  if (set.form == ResultForm::kF32) {
    return launch<TurnsForm<ResultForm::kF32, kRows, kMakes>>(stream, set);
  }
  launch<TurnsForm<ResultForm::kBf16, kRows, kMakes>>(stream, set);
}
// Of the shared expert: pairs of atoms, 96 blocks of 4,608 slots.
void launch_swiglu(Stream stream, const DenseSet& set) {
  launch<TurnsForm<ResultForm::kSwiGlu, kSwiGluRowsMax, false, 6, 4, 4, 226, kSwiGluChunksMax>>(
      stream, set);
}

}  // namespace

bool takes_turns(const DenseSet& set) {
  const int32_t chunks = set.common.chunks;
  const bool swiglu = set.form == ResultForm::kSwiGlu;
  const int32_t chunks_max =
      swiglu ? kSwiGluChunksMax : TurnsForm<ResultForm::kBf16, kRowsMax, false>::kChunksMax;
  if (set.common.rows > (swiglu ? kSwiGluRowsMax : kRowsMax) || set.common.row_weight != nullptr ||
      chunks < kChunksMin || chunks > chunks_max) {
    return false;
  }
  int32_t slots = 0;
  for (int32_t i = 0; i < set.count; ++i) {
    if (dense_sum_groups(set.parts[i].slots, chunks) != 1) return false;
    slots += set.parts[i].slots;
  }
  return set.count > 0 && slots <= kSlotsMax;
}

bool makes_rows(const DenseSet& set) {
  return set.form != ResultForm::kSwiGlu && set.raw.rows <= kMadeRowsMax && is_whole(set.raw) &&
         takes_turns(set);
}

void dense_turns(Stream stream, const DenseSet& set) {
  CHECK(takes_turns(set));
  if (set.form == ResultForm::kSwiGlu) return launch_swiglu(stream, set);
  if (set.raw.data == nullptr) return launch_form<kRowsMax, false>(stream, set);
  CHECK(makes_rows(set));
  launch_form<kMadeRowsMax, true>(stream, set);
}

}  // namespace galley::kernels::cuda
