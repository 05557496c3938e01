// The forms of the wide product, and which of them a number of rows gets.
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_product.cuh"
#include "kernels/cuda/wide_product.cuh"
#include "kernels/cuda/wide_turns.cuh"

namespace galley::kernels::cuda {
namespace {

// Token blocks that go through a group's weights together: their inputs stay in the L2 meanwhile.
constexpr int32_t kPanelBlocks = 16;

template <class Form>
void launch_as(void (*kernel)(WideArguments), const RowProduct& p, Stream stream) {
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, Form::kCluster);
  const WeightView& w = p.weight;
  const int32_t element = Form::kFp8 ? 1 : 2;
  WideArguments args{};
  args.weights = matrix_map(w.data, w.out, w.in, w.in * element, element, Form::kOutputs, kWideK);
  args.x =
      matrix_map(p.x.data, p.x.rows, p.groups * w.in, p.x.stride * 2, 2, Form::kBoxTokens, kWideK);
  args.scale = w.scale;
  args.scale_stride = w.in / 32;
  args.chunks = static_cast<int32_t>(w.in / kWideK);
  args.out = static_cast<int32_t>(w.out);
  args.rows = static_cast<int32_t>(p.x.rows);
  args.groups = p.groups;
  constexpr int32_t kTile = Form::kOutputs * Form::kCluster;
  args.group_tiles = static_cast<int32_t>((w.out / p.groups + kTile - 1) / kTile);
  args.token_blocks = (args.rows + Form::kTokens - 1) / Form::kTokens;
  args.panel_blocks = std::min(args.token_blocks, kPanelBlocks);
  args.f32 = p.y.data == nullptr;
  args.y = args.f32 ? static_cast<void*>(p.y_f32.data) : static_cast<void*>(p.y.data);
  args.y_stride = args.f32 ? p.y_f32.stride : p.y.stride;
  args.pairs = args.y_stride % 2 == 0 && reinterpret_cast<uintptr_t>(args.y) % 4 == 0;
  const int32_t items = args.groups * args.group_tiles * args.token_blocks * Form::kCluster;
  launch_kernel(kernel,
                {std::min(items, limits.blocks), Form::kThreads,
                 static_cast<size_t>(Form::kSharedBytes), static_cast<uint32_t>(Form::kCluster)},
                stream, args);
}
template <class Form>
void launch_form(const RowProduct& p, Stream stream) {
  launch_as<Form>(wide_product_kernel<Form>, p, stream);
}
template <class Form>
void launch_turns(const RowProduct& p, Stream stream) {
  launch_as<Form>(wide_turns_kernel<Form>, p, stream);
}

// Rounds of all multiprocessors times the tokens of a round: what a form of two strips takes.
int64_t round_tokens(const RowProduct& p, int64_t tokens) {
  constexpr int64_t kMultiprocessors = 132;
  const int64_t tiles = (p.weight.out + 127) / 128 * ((p.x.rows + tokens - 1) / tokens);
  return (tiles + kMultiprocessors - 1) / kMultiprocessors * tokens;
}

template <bool kFp8>
void launch_many(const RowProduct& p, Stream stream) {
  const int64_t cost_128 = round_tokens(p, 128);
  const int64_t cost_192 = round_tokens(p, 192);
  const int64_t cost_256 = round_tokens(p, 256);
  if (cost_256 <= std::min(cost_192, cost_128)) {
    return launch_form<WideForm<kFp8, 2, 256, 2>>(p, stream);
  }
  if (cost_192 <= cost_128) return launch_form<WideForm<kFp8, 2, 192, 2>>(p, stream);
  launch_form<WideForm<kFp8, 2, 128, 2>>(p, stream);
}

}  // namespace

bool takes_wide(const RowProduct& p) {
  constexpr int64_t kInMin = 1024;  // narrower ones of small models share launches of few rows
  constexpr int64_t kStripsMin = 128;
  constexpr int64_t kClusterOutputs = 256;  // of the largest form: they read one group's inputs
  const WeightView& w = p.weight;
  if (w.folded || w.in < kInMin || w.out / kWideStrip < kStripsMin) return false;
  if (reinterpret_cast<uintptr_t>(w.data) % 16 != 0) return false;
  if (p.groups > 1 && w.out / p.groups % kClusterOutputs != 0) return false;
  if (w.format == WeightFormat::kBf16) return w.in % kWideK == 0;
  return w.format == WeightFormat::kFp8Tile32 && w.in % (4 * kWideK) == 0 && w.in <= kWideInMax;
}

void launch_wide_product(const RowProduct& p, Stream stream) {
  const int64_t rows = p.x.rows;
  if (p.weight.format == WeightFormat::kFp8Tile32) {
    if (rows <= 8) return launch_turns<WideTurnsForm<8, 1, 4>>(p, stream);
    if (rows <= 32) return launch_turns<WideTurnsForm<32, 2, 4>>(p, stream);
    if (rows <= 48) return launch_form<WideForm<true, 1, 48, 1, 2>>(p, stream);
    if (rows <= 64) return launch_form<WideForm<true, 1, 64, 1, 2>>(p, stream);
    if (rows <= 80) return launch_form<WideForm<true, 1, 80, 1, 2>>(p, stream);
    if (rows <= 96) return launch_form<WideForm<true, 1, 96, 1, 2>>(p, stream);
    if (rows <= 128) return launch_form<WideForm<true, 1, 128, 1, 2>>(p, stream);
    if (rows <= 160) return launch_form<WideForm<true, 2, 80, 1, 2>>(p, stream);
    if (rows <= 192) return launch_form<WideForm<true, 2, 96, 1, 2>>(p, stream);
    if (rows <= 256) return launch_form<WideForm<true, 2, 128, 1, 2>>(p, stream);
    if (rows <= 320 && round_tokens(p, 160) == 160) {
      return launch_form<WideForm<true, 2, 160, 1>>(p, stream);
    }
    if (rows <= 384 && round_tokens(p, 192) == 192) {
      return launch_form<WideForm<true, 2, 192, 1>>(p, stream);
    }
    return launch_many<true>(p, stream);
  }
  if (rows <= 8) return launch_form<WideForm<false, 2, 8, 1>>(p, stream);
  if (rows <= 32) return launch_form<WideForm<false, 2, 32, 2>>(p, stream);
  if (rows <= 64) return launch_form<WideForm<false, 2, 64, 2>>(p, stream);
  launch_many<false>(p, stream);
}

}  // namespace galley::kernels::cuda
