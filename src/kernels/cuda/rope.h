// Rotation of the last channels of vectors (spec/model.md 4.1).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// The last 2 * angles.cos.cols channels of each of `heads` vectors of a row turn, in place.
void rope(Stream stream, Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse);
// Such a call that may still become part of another.
struct HeldRope {
  Rows<Bf16> x;
  int32_t heads = 0;
  RopeAngles angles;
  bool inverse = false;

  bool is_of(Rows<const Bf16> q, int32_t q_heads, const RopeAngles& by) const {
    return x.data == q.data && x.rows == q.rows && heads == q_heads &&
           angles.cos.data == by.cos.data && angles.sin.data == by.sin.data;
  }
};

}  // namespace galley::kernels::cuda
