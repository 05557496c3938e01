// 8 channels of a row leave a hyper-connection site: streams <- expand(y, streams, post, comb), in
// the order of plain/, and the experts' sum that may be y.
#pragma once

#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {

// What a row's channels are mixed with.
struct LeaveMix {
  float comb[kStreams * kStreams];
  float post[kStreams];

  __device__ __forceinline__ void load(const float* comb_row, const float* post_row) {
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i) comb[i] = comb_row[i];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) post[j] = post_row[j];
  }

  // Both at multiples of 16 bytes.
  __device__ __forceinline__ void load_whole(const float* comb_row, const float* post_row) {
#pragma unroll
    for (int i = 0; i <= kStreams; ++i) {
      const float* from = i < kStreams ? comb_row + i * 4 : post_row;
      const float4 four = *reinterpret_cast<const float4*>(from);
      float* to = i < kStreams ? comb + i * 4 : post;
      to[0] = four.x;
      to[1] = four.y;
      to[2] = four.z;
      to[3] = four.w;
    }
  }
};

__device__ __forceinline__ void leave8(const LeaveMix& mix, uint4 y, uint4 (&streams)[kStreams]) {
  const Float8 added = widen8(y);
  uint4 result[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    Float8 out;
#pragma unroll
    for (int from = 0; from < kStreams; ++from) {
      const Float8 in = widen8(streams[from]);
      const float c = mix.comb[from * kStreams + j];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        out.v[e] = from == 0 ? plus_zero(c, in.v[e]) : out.v[e] + c * in.v[e];
      }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) out.v[e] = fmaf(mix.post[j], added.v[e], out.v[e]);
    result[j] = narrow8(out);
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) streams[j] = result[j];
}

// The sum of a row's experts in the order of the choices, then of its shared expert.
__device__ __forceinline__ uint4 combine8(const ExpertParts& parts, int64_t row, int64_t vector) {
  const int64_t width = parts.rows.cols;
  constexpr int32_t kAtOnce = 6;  // places, then rows, asked for together
  const uint4 shared = load8<true>(row_of(parts.shared, row), vector, width);
  Float8 sum = {};
  const auto add = [&sum](uint4 raw) {
    const Float8 one = widen8(raw);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.v[e] += one.v[e];
  };
  for (int32_t first = 0; first < parts.top_k; first += kAtOnce) {
    int64_t from[kAtOnce];
    uint4 raw[kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      from[i] = -1;
      if (first + i >= parts.top_k) continue;
      from[i] = row * parts.top_k + first + i;
      if (parts.place != nullptr) from[i] = parts.place[from[i]];
    }
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      raw[i] = {};
      if (from[i] >= 0) raw[i] = load8<true>(row_of(parts.rows, from[i]), vector, width);
    }
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      if (from[i] >= 0) add(raw[i]);
    }
  }
  add(shared);
  return narrow8(sum);
}

}  // namespace galley::kernels::cuda
