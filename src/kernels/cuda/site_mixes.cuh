// Mixes of a site's rows, two by a warp, on whatever blocks (site_mixes.h).
#pragma once

#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/site_mixes.h"

namespace galley::kernels::cuda {

// By warp `warp` of `warps` that share the rows.
__device__ __forceinline__ void make_site_mixes(const SiteMixes& mixes, int64_t warp,
                                                int64_t warps) {
  MixWeights weights;
  weights.load(mixes.weights);
  FinishArguments args = {};
  args.options = mixes.options;
  args.mix = mixes.mix;
  args.x.rows = mixes.rows;
  args.x.cols = mixes.hidden;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t slices = divide_up(mixes.hidden, kSlice);
  await_earlier();
  for (int64_t first = warp * kFinishRows; first < mixes.rows; first += warps * kFinishRows) {
    float sum[kFinishRows] = {};
    for (int64_t slice = 0; slice < slices; ++slice) {
#pragma unroll
      for (int r = 0; r < kFinishRows; ++r) {
        const int64_t row = min(first + r, mixes.rows - 1);
        sum[r] += mixes.sums[(row * slices + slice) * kPartials + min(lane, kSquares)];
      }
    }
    write_mixes(args, weights, first, sum);
  }
}

}  // namespace galley::kernels::cuda
