// Attention of one narrow row and both of its output projections, in one launch.
//
// Floor: latency, of a key's way from its number to its record above all. A cluster has a block for
// each group of heads whose values one part of the first projection reads: every block decodes the
// keys for itself and attends with its own heads, so that its part of the first projection needs no
// other block. What it makes of it goes to all blocks' shared memory, and behind the cluster's
// barrier each has its share of the second projection's outputs. Copies that wait for attention's
// reads are made behind the same barrier. A warp has eight outputs of either projection, whose
// weights are unpacked before the wait, and keys decoded that lie in the ring since earlier steps;
// all sums are those of attention_narrow.cuh and few_rows.cu.
// On an H200, behind each other, nano with 117 keys: 7.9 us where three launches took 10.1. In a
// step without an index layer 8.4 us, 7.6 since keys of the ring are decoded before the wait.
#include "base/check.h"
#include "kernels/cuda/attention_narrow.cuh"
#include "kernels/cuda/cluster_push.cuh"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/lone_row.h"
#include "kernels/cuda/lone_site.cuh"
#include "kernels/cuda/lone_strip.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kOutputs = 8;  // of a warp
constexpr int kBlockOutputs = kOutputs * kLoneWarps;
constexpr int64_t kGroupsMax = 8;
static_assert(kNarrowThreads == kLoneThreads);

struct LoneAttentionArguments {
  NarrowAttention attention;
  RowProduct inner;
  RowProduct outer;
  const RowCopy* copies;
  int64_t copy_count;
  bool ring_early;
};

struct LoneOutputShared {
  alignas(16) Bf16 values[kLoneLatentMax];  // of this block's heads
  alignas(16) Bf16 inner[kLoneHiddenMax];   // of all blocks
  LoneInputs own[kLoneWarps];
};

template <int kWidth>
__global__ void __launch_bounds__(kLoneThreads, 1)
    lone_attention_kernel(const __grid_constant__ LoneAttentionArguments args) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  __shared__ LoneOutputShared shared;
  cluster_arrive_apart();  // so that nobody pushes into a block that has not begun
  let_next_begin();
  const RowProduct& inner = args.inner;
  const RowProduct& outer = args.outer;
  const auto groups = static_cast<int>(gridDim.x);
  const auto group = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int heads = args.attention.shape.heads / groups;
  const auto inner_each = static_cast<int>(inner.weight.out) / groups;
  const auto outer_each = static_cast<int>(outer.weight.out) / groups;
  const bool has_inner = warp * kOutputs < inner_each;
  const bool has_outer = warp * kOutputs < outer_each;
  const int64_t inner_output = int64_t{group} * inner_each + warp * kOutputs + lane / 4;
  const int64_t outer_output = int64_t{group} * outer_each + warp * kOutputs + lane / 4;
  StripOperands<kLatentBlocks, false> inner_weights;
  StripOperands<kInputBlocks, false> outer_weights;
  if (has_inner) inner_weights.load_outputs(inner.weight, inner_output);
  if (has_outer) outer_weights.load_outputs(outer.weight, outer_output);
  Bf16* o = args.attention.o.data + int64_t{group} * heads * kWidth;
  attend_narrow<kWidth>(args.attention, 0, group * heads, heads, args.ring_early, shared_bytes,
                        [&](int32_t head, int32_t channel, uint32_t pair) {
                          const int32_t at = head * kWidth + channel;
                          *reinterpret_cast<uint32_t*>(shared.values + at) = pair;
                          *reinterpret_cast<uint32_t*>(o + at) = pair;
                        });
  __syncthreads();
  float sums[4];
  if (has_inner) inner_weights.multiply(shared.values, inner.weight.in, sums);
  cluster_wait_apart();
  if (has_inner && lane % 4 == 0) {
    const Bf16 value = narrow(sums[0]);
    for (int block = 0; block < groups; ++block) {
      push(shared.inner + inner_output, static_cast<uint32_t>(block), value);
    }
    inner.y.data[inner_output] = value;
  }
  cluster_arrive_apart();
  cluster_wait_apart();
  for (int64_t i = group; i < args.copy_count; i += groups) {
    copy_row<kLoneThreads>(args.copies[i]);
  }
  if (!has_outer) return;
  uint4 raw = {};
  if (lane * 8 < outer.weight.in) raw = reinterpret_cast<const uint4*>(shared.inner)[lane];
  LoneInputs& own = shared.own[warp];
  put_lone(raw, outer.weight.in, own);
  outer_weights.multiply(outer.quantise ? own.quantised : own.exact, outer.weight.in, sums);
  if (lane % 4 == 0) outer.y.data[outer_output] = narrow(sums[0]);
}

auto kernel_of(int32_t width) {
  return width == 32 ? lone_attention_kernel<32> : lone_attention_kernel<64>;
}

size_t bytes_of(const AttentionShape& shape) {
  return static_cast<size_t>(
      NarrowPlaces(shape.head_dim, shape.window + shape.selected_max).bytes());
}

}  // namespace

bool lone_attention_supports(const LoneAttention& a) {
  const AttentionShape& shape = a.shape;
  const int64_t groups = a.inner.groups;
  const int64_t width = shape.head_dim;
  const auto is_lone = [](const RowProduct& p) {
    return p.x.rows == 1 && p.y.data != nullptr && !p.weight.folded && takes_few_rows(p);
  };
  const auto shares = [groups](int64_t outputs) {
    return outputs % groups == 0 && outputs / groups % kOutputs == 0 &&
           outputs / groups <= kBlockOutputs;
  };
  return a.q.rows == 1 && narrow_attention_supports(a.q, shape, a.o) && groups <= kGroupsMax &&
         shape.heads % groups == 0 && shape.heads / groups <= kNarrowHeads && is_lone(a.inner) &&
         is_lone(a.outer) && a.outer.groups == 1 && !a.inner.quantise &&
         a.inner.x.data == a.o.data && a.inner.weight.in == shape.heads / groups * width &&
         a.inner.weight.in <= kLoneLatentMax && a.outer.x.data == a.inner.y.data &&
         a.outer.weight.in == a.inner.weight.out && a.outer.weight.in <= kLoneHiddenMax &&
         a.outer.weight.in % 32 == 0 && shares(a.inner.weight.out) && shares(a.outer.weight.out);
}

void launch_lone_attention(const LoneAttention& a, Stream stream) {
  const auto scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.shape.head_dim)));
  const LoneAttentionArguments args{{a.q, a.turns, a.sink, a.shape, scale, a.angles, a.rows, a.o},
                                    a.inner,
                                    a.outer,
                                    a.copies,
                                    a.copy_count,
                                    a.ring_early};
  const auto groups = static_cast<uint32_t>(a.inner.groups);
  launch_kernel(kernel_of(a.shape.head_dim), {groups, kLoneThreads, bytes_of(a.shape), groups},
                stream, args);
}

}  // namespace galley::kernels::cuda
