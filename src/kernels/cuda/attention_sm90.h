// Sparse attention at the released shape on SM90: 64 heads x 512 channels over packed
// window and global records (ops.h, Ops::attention).
//
// Knows neither pages nor sequences beyond the row descriptors. Other shapes go to the
// general kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

inline constexpr int32_t kAttentionHeads = 64;
inline constexpr int32_t kAttentionWidth = 512;
inline constexpr int32_t kAttentionWindowMax = 128;
inline constexpr int32_t kAttentionSelectedMax = 512;
// Where few rows' probabilities pass between blocks; of each of the first kAttentionRoomRows rows.
inline constexpr int64_t kAttentionRoomBytes =
    (kAttentionWindowMax + kAttentionSelectedMax) / 16 * (16 * 2 + 4) * kAttentionHeads;
inline constexpr int32_t kAttentionRoomRows = 16;

// Everything points to device memory. Records start at multiples of 16 bytes.
struct AttentionCall {
  const Bf16* q = nullptr;  // [rows, 64 x 512], rows q_stride elements apart
  int64_t q_stride = 0;
  const float* sink = nullptr;  // [64]
  const float* cos = nullptr;   // [rows, rotary / 2]
  const float* sin = nullptr;
  int64_t angle_stride = 0;
  int32_t rotary = 0;                  // at most 64
  int32_t turns = 0;                   // 1: q is as rope() finds it, not as it leaves it
  int32_t keys_early = 0;              // 1: of what is read here the launch in front writes q alone
  const AttentionRow* rows = nullptr;  // [row_count], its pointers too are device pointers
  int32_t row_count = 0;
  Bf16* o = nullptr;  // [rows, 64 x 512]; may be q
  int64_t o_stride = 0;
  uint8_t* room = nullptr;  // kAttentionRoomRows x kAttentionRoomBytes, until the call is over

  static AttentionCall of(Rows<const Bf16> queries, const float* sinks, const RopeAngles& angles,
                          const AttentionRow* device_rows, Rows<Bf16> out) {
    AttentionCall call;
    call.q = queries.data;
    call.q_stride = queries.stride;
    call.sink = sinks;
    call.cos = angles.cos.data;
    call.sin = angles.sin.data;
    call.angle_stride = angles.cos.stride;
    call.rotary = static_cast<int32_t>(2 * angles.cos.cols);
    call.rows = device_rows;
    call.row_count = static_cast<int32_t>(queries.rows);
    call.o = out.data;
    call.o_stride = out.stride;
    return call;
  }
};

bool attention_sm90_supports(const AttentionShape& shape, int32_t rotary);

// `multiprocessors` only places work: results do not depend on it. The caller checks errors
// (check_launch).
void attention_sm90(const AttentionCall& call, int32_t multiprocessors, Stream stream);
// Its forms for few rows: eight blocks or more each, as many rows as then run at once, and two
// blocks each.
void attention_cluster(const AttentionCall& call, Stream stream);
int32_t attention_cluster_rows();
void attention_pair(const AttentionCall& call, Stream stream);

}  // namespace galley::kernels::cuda
