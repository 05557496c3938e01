// Rotation in place. Floor: the turned channels read and written once (an eighth of a query).
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/rope.h"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A thread has four pairs of one head: the vectors of 8 channels counted from where they turn.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(Rows<Bf16> x, int32_t heads, Rows<const float> cosines, Rows<const float> sines,
                float sign) {
  await_earlier();
  const int64_t row = blockIdx.x;
  const int64_t rotary = 2 * cosines.cols;
  const auto vectors = static_cast<unsigned>(rotary + 7) / 8;
  const unsigned item = blockIdx.y * kThreads + threadIdx.x;
  const unsigned head = item / vectors;
  const unsigned vector = item % vectors;
  if (head >= static_cast<unsigned>(heads)) return;
  const int64_t width = x.cols / heads;
  Bf16* turning = row_of(x, row) + head * width + width - rotary;
  uint4 raw = load8<kWhole>(turning, vector, rotary);
  uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t angle = vector * 4 + i;
    if (angle < cosines.cols) {
      word[i] = turn(word[i], row_of(cosines, row)[angle], sign * row_of(sines, row)[angle]);
    }
  }
  store8<kWhole>(turning, vector, rotary, {word[0], word[1], word[2], word[3]});
}

}  // namespace

void rope(Stream stream, Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse) {
  const int64_t rotary = 2 * angles.cos.cols;
  const int64_t width = x.cols / heads;
  CHECK(x.cols % heads == 0 && rotary <= width && angles.sin.cols == angles.cos.cols);
  if (x.rows == 0 || rotary == 0) return;
  const dim3 grid(static_cast<unsigned>(x.rows),
                  static_cast<unsigned>(divide_up(heads * divide_up(rotary, 8), kThreads)));
  const float sign = inverse ? -1.0F : 1.0F;
  if (is_whole(x) && width % 8 == 0 && rotary % 8 == 0) {
    launch_kernel(rope_kernel<true>, {grid, kThreads}, stream, x, heads, angles.cos, angles.sin,
                  sign);
  } else {
    launch_kernel(rope_kernel<false>, {grid, kThreads}, stream, x, heads, angles.cos, angles.sin,
                  sign);
  }
}

}  // namespace galley::kernels::cuda
