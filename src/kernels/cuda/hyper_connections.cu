// The parts of hyper-connections that move a row's four streams channel by channel. hc_enter has a
// file of its own.
//
// Floor: every stream read once and written once. A thread has 8 channels of all streams, so each
// sum over streams stays in registers, in the order of plain/, and the bits are plain/'s.
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/hc_leave.cuh"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kSumAlongMax = int64_t{1} << 20;  // channels of narrow rows left with their sum

__device__ __forceinline__ int64_t channel_vector() {
  return int64_t{blockIdx.y} * kThreads + threadIdx.x;
}

// kSum: y is the experts' sum, of whole vectors, and is made here.
template <bool kWhole, bool kSum>
__global__ void __launch_bounds__(kThreads) leave_kernel(const __grid_constant__ HcLeave leave) {
  await_earlier();
  const auto& [parts, y, post, comb, streams] = leave;
  const int64_t row = blockIdx.x;
  const int64_t vector = channel_vector();
  const int64_t hidden = y.cols;
  if (kSum && vector * 8 >= hidden) return;
  uint4 raw[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    raw[j] = load8<kWhole>(row_of(streams, row) + j * hidden, vector, hidden);
  }
  uint4 added;
  if constexpr (kSum) {
    added = combine8(parts, row, vector);
    store8<true>(row_of(y, row), vector, hidden, added);
  } else {
    added = load8<kWhole>(row_of(y, row), vector, hidden);
  }
  LeaveMix mix;
  mix.load(row_of(comb, row), row_of(post, row));
  leave8(mix, added, raw);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    store8<kWhole>(row_of(streams, row) + j * hidden, vector, hidden, raw[j]);
  }
}

template <bool kWhole>
__global__ void __launch_bounds__(kThreads) mean_kernel(Rows<const Bf16> streams, Rows<Bf16> mean) {
  await_earlier();
  const int64_t row = blockIdx.x;
  const int64_t vector = channel_vector();
  Float8 sum = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const Float8 in =
        widen8(load8<kWhole>(row_of(streams, row) + j * mean.cols, vector, mean.cols));
    for (int e = 0; e < 8; ++e) sum.v[e] += in.v[e];
  }
  for (int e = 0; e < 8; ++e) sum.v[e] = sum.v[e] / static_cast<float>(kStreams);
  store8<kWhole>(row_of(mean, row), vector, mean.cols, narrow8(sum));
}

// Further blocks have a copy each. The first kernel of a step: the next one may be placed with it,
// because the last kernel of a step never lets others begin before its own wait. So what earlier
// steps wrote (rings of keys) may be read before a wait.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(const SourceRow* sources, Rows<Bf16> streams, const RowCopy* copies) {
  let_next_begin();
  await_earlier();
  const int64_t row = blockIdx.x;
  if (row >= streams.rows) {
    if (blockIdx.y == 0) copy_row<kThreads>(copies[row - streams.rows]);
    return;
  }
  const int64_t vector = channel_vector();
  const int64_t hidden = streams.cols / kStreams;
  const SourceRow from = sources[row];
  const Bf16* source = from.row;
  if (from.drawn != nullptr) source += from.drawn->token * hidden;
  // Where a source lies is not known on the host: an embedding of an image may lie anywhere.
  const bool whole = kWhole && reinterpret_cast<uintptr_t>(source) % 16 == 0;
  const uint4 raw =
      whole ? load8<true>(source, vector, hidden) : load8<false>(source, vector, hidden);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    store8<kWhole>(row_of(streams, row) + j * hidden, vector, hidden, raw);
  }
}

constexpr int kCollapseVectors = 2;

// A block a row: few rows ever come here, those that want logits.
template <bool kWhole>
__global__ void collapse_norm_kernel(Rows<const Bf16> streams, Rows<const float> carried,
                                     const Bf16* norm_weight, float eps, Rows<Bf16> x) {
  let_next_begin();
  await_earlier();
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  const int64_t hidden = x.cols;
  uint4 collapsed[kCollapseVectors];
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kCollapseVectors; ++i) {
    Float8 sum = {};
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float factor = row_of(carried, row)[j];
      const Float8 in = widen8(
          load8<kWhole>(row_of(streams, row) + j * hidden, threadIdx.x + i * blockDim.x, hidden));
      for (int e = 0; e < 8; ++e) sum.v[e] += factor * in.v[e];
    }
    collapsed[i] = narrow8(sum);
    squares += square_sum(widen8(collapsed[i]));
  }
  const float inverse = inverse_rms(block_sum(squares, scratch), hidden, eps);
#pragma unroll
  for (int i = 0; i < kCollapseVectors; ++i) {
    const int64_t vector = threadIdx.x + i * blockDim.x;
    const Float8 w = widen8(load8<kWhole>(norm_weight, vector, hidden));
    Float8 value = widen8(collapsed[i]);
    for (int e = 0; e < 8; ++e) value.v[e] = value.v[e] * inverse * w.v[e];
    store8<kWhole>(row_of(x, row), vector, hidden, narrow8(value));
  }
}

dim3 channel_grid(int64_t rows, int64_t hidden) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(divide_up(hidden, 8 * kThreads)));
}

}  // namespace

void hc_leave(Stream stream, const HcLeave& leave) {
  const Rows<Bf16>& y = leave.y;
  const ExpertParts& parts = leave.parts;
  CHECK(leave.streams.cols == kStreams * y.cols);
  if (y.rows == 0) return;
  const dim3 grid = channel_grid(y.rows, y.cols);
  const auto launch = [&](auto kernel) { launch_kernel(kernel, {grid, kThreads}, stream, leave); };
  const bool whole = is_whole(y) && is_whole(leave.streams);
  if (parts.rows.data != nullptr) {
    const bool along = whole && parts.place == nullptr && is_whole(parts.rows) &&
                       is_whole(parts.shared) && y.rows * y.cols <= kSumAlongMax;
    if (along) return launch(leave_kernel<true, true>);
    sum_experts(stream, parts, y);
  }
  launch(whole ? leave_kernel<true, false> : leave_kernel<false, false>);
}

void stream_mean(Stream stream, Rows<const Bf16> streams, Rows<Bf16> mean) {
  CHECK(streams.cols == kStreams * mean.cols);
  if (streams.rows == 0) return;
  const dim3 grid = channel_grid(mean.rows, mean.cols);
  if (is_whole(mean) && is_whole(streams)) {
    launch_kernel(mean_kernel<true>, {grid, kThreads}, stream, streams, mean);
  } else {
    launch_kernel(mean_kernel<false>, {grid, kThreads}, stream, streams, mean);
  }
}

void spread(Stream stream, const SourceRow* sources, Rows<Bf16> streams, const RowCopy* copies,
            int64_t copy_count) {
  if (streams.rows == 0) return;
  const int64_t hidden = streams.cols / kStreams;
  const dim3 grid = channel_grid(streams.rows + copy_count, hidden);
  if (is_whole(streams) && hidden % 8 == 0) {
    launch_kernel(spread_kernel<true>, {grid, kThreads}, stream, sources, streams, copies);
  } else {
    launch_kernel(spread_kernel<false>, {grid, kThreads}, stream, sources, streams, copies);
  }
}

void collapse_norm(Stream stream, Rows<const Bf16> streams, Rows<const float> carried,
                   const Bf16* norm_weight, float eps, Rows<Bf16> x) {
  CHECK(streams.cols == kStreams * x.cols && x.cols <= 512 * 8 * kCollapseVectors);
  if (x.rows == 0) return;
  const int threads = row_threads(x.cols, kCollapseVectors);
  const auto grid = static_cast<unsigned>(x.rows);
  if (is_whole(streams) && is_whole(x) && is_whole(norm_weight, x.cols)) {
    launch_kernel(collapse_norm_kernel<true>, {grid, threads}, stream, streams, carried,
                  norm_weight, eps, x);
  } else {
    launch_kernel(collapse_norm_kernel<false>, {grid, threads}, stream, streams, carried,
                  norm_weight, eps, x);
  }
}

}  // namespace galley::kernels::cuda
