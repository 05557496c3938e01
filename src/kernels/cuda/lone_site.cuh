// A hyper-connection site of one narrow row (at most 256 channels), as it is part of a larger
// launch: every block makes x for itself, one block what else the site leaves.
//
// x wants no product: 2 KB of streams, the experts' results and 24 floats, all asked for at once,
// one thread a pair of channels. So blocks that multiply x make it again rather than wait for a
// launch that made it (lone_row.cu). The mixes, which only the next site reads, are made beside
// them by the last block: the projection by the tensor cores with operands that were in registers
// before the wait, then Sinkhorn, one division behind the other. Streams, mixes and y lie where
// they are read: that block stores behind a barrier of the cluster, at which the others arrive when
// they have read. Sums are those of hc_enter.cu in the same order: the same bits.
#pragma once

#include "kernels/cuda/cluster_push.cuh"
#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/lone_row.h"
#include "kernels/cuda/narrow_strip.cuh"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {

constexpr int kLoneThreads = 256;
constexpr int kLoneWarps = kLoneThreads / kWarp;
constexpr int kLonePairs = static_cast<int>(kLoneHiddenMax) / 2;
constexpr int kLoneGroups = static_cast<int>(kLoneHiddenMax) / kGroup;
constexpr int kLonePartsMax = 8;  // experts of a row
static_assert(kLoneGroups == kLoneWarps && kLonePairs <= kLoneThreads);

struct LoneSiteShared {
  alignas(16) uint32_t x[kLonePairs];  // not yet scaled
  alignas(16) uint32_t streams[kStreams][kLonePairs];
  float exchange[kLoneGroups][kOutSquares + 1];
};

// Two channels of the row behind the site before.
struct LonePair {
  uint32_t streams[kStreams];
  uint32_t y;
  uint32_t x;
};

// Behind the wait. All loads are asked for before the first is used.
__device__ __forceinline__ LonePair leave_pair(const LoneSite& site, int pair) {
  const HcLeave& leave = site.leave;
  const int hidden_pairs = static_cast<int>(site.x.cols) / 2;
  const auto pair_of = [pair](const Bf16* row) {
    return reinterpret_cast<const uint32_t*>(row)[pair];
  };
  LonePair own;
  uint32_t parts[kLonePartsMax];
  float4 comb[kStreams];
  float4 post = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    own.streams[j] = pair_of(site.streams.data + 2 * j * hidden_pairs);
  }
  const bool sums = leave.parts.rows.data != nullptr;
  const bool leaves = leave.y.data != nullptr;
  const int top_k = leave.parts.top_k;
  if (sums) {
#pragma unroll
    for (int i = 0; i < kLonePartsMax; ++i) {
      parts[i] = i < top_k ? pair_of(row_of(leave.parts.rows, i)) : 0;
    }
    own.y = pair_of(leave.parts.shared.data);
  } else {
    own.y = leaves ? pair_of(leave.y.data) : 0;
  }
  if (leaves) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      comb[i] = reinterpret_cast<const float4*>(leave.comb.data)[i];
    }
    post = *reinterpret_cast<const float4*>(leave.post.data);
  }
  const float4 pi = *reinterpret_cast<const float4*>(site.carried.data);
  if (sums) {
    float low = 0.0F;
    float high = 0.0F;
#pragma unroll
    for (int i = 0; i < kLonePartsMax; ++i) {
      if (i >= top_k) break;
      low += low_half(parts[i]);
      high += high_half(parts[i]);
    }
    own.y = pack_bf16(low + low_half(own.y), high + high_half(own.y));
  }
  if (leaves) {
    const float posts[kStreams] = {post.x, post.y, post.z, post.w};
    const float low_y = low_half(own.y);
    const float high_y = high_half(own.y);
    uint32_t result[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      float low = 0.0F;
      float high = 0.0F;
#pragma unroll
      for (int from = 0; from < kStreams; ++from) {
        const float c = j == 0   ? comb[from].x
                        : j == 1 ? comb[from].y
                        : j == 2 ? comb[from].z
                                 : comb[from].w;
        const float low_in = low_half(own.streams[from]);
        const float high_in = high_half(own.streams[from]);
        low = from == 0 ? plus_zero(c, low_in) : low + c * low_in;
        high = from == 0 ? plus_zero(c, high_in) : high + c * high_in;
      }
      result[j] = pack_bf16(fmaf(posts[j], low_y, low), fmaf(posts[j], high_y, high));
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) own.streams[j] = result[j];
  }
  const float pis[kStreams] = {pi.x, pi.y, pi.z, pi.w};
  float low = 0.0F;
  float high = 0.0F;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float low_in = low_half(own.streams[j]);
    const float high_in = high_half(own.streams[j]);
    low = j == 0 ? plus_zero(pis[j], low_in) : low + pis[j] * low_in;
    high = j == 0 ? plus_zero(pis[j], high_in) : high + pis[j] * high_in;
  }
  own.x = pack_bf16(low, high);
  return own;
}

// The norm's weights of a lane: constant, before the wait.
__device__ __forceinline__ uint4 load_lone_norm(const LoneSite& site) {
  return load8<true>(site.norm_weight, threadIdx.x % kWarp, site.x.cols);
}

// inverse_rms(): dividing by a power of two is multiplying by its inverse.
__device__ __forceinline__ float lone_inverse_rms(float squares, int width, float eps) {
  const bool power = (width & (width - 1)) == 0;
  const float exact = __uint_as_float((127U - (31U - __clz(width))) << 23);
  const float mean = power ? squares * exact : squares / static_cast<float>(width);
  return 1.0F / sqrtf(mean + eps);
}

// Eight channels of x a lane, scaled, by a warp whose block has x in shared memory.
__device__ __forceinline__ uint4 scale_lone(const LoneSite& site, const uint32_t* x, uint4 weight) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint4 raw = {};
  if (lane * 8 < site.x.cols) raw = reinterpret_cast<const uint4*>(x)[lane];
  const float quad = quad_sum(square_sum(widen8(raw)));
  float slices[2] = {};
#pragma unroll
  for (int g = 0; g < kLoneGroups; ++g) slices[g / kSliceGroups] += from_lane(quad, 4 * g);
  const float squares = (0.0F + slices[0]) + slices[1];
  return normed(
      raw, lone_inverse_rms(squares, static_cast<int>(site.x.cols), site.options.norm_eps), weight);
}

// x as a warp's products read it, in rows of its own.
struct LoneInputs {
  alignas(16) Bf16 exact[kLoneHiddenMax];
  alignas(16) Bf16 quantised[kLoneHiddenMax];
};

// Eight channels of a row a lane, to the warp's rows: as they are, and their Q8, whose groups are
// four lanes.
__device__ __forceinline__ void put_lone(uint4 raw, int64_t cols, LoneInputs& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  float amax = 0.0F;
#pragma unroll
  for (uint32_t word : words) {
    amax = fmaxf(amax, fmaxf(fabsf(low_half(word)), fabsf(high_half(word))));
  }
  amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 2));
  const uint8_t code = q8_scale(amax);
  const float scale = e8m0_value(code);
  const float inverse = e8m0_value(static_cast<uint8_t>(254 - code));
#pragma unroll
  for (uint32_t& word : words) {
    const float2 value = {low_half(word) * inverse, high_half(word) * inverse};
    const auto two = __nv_cvt_float2_to_fp8x2(value, __NV_SATFINITE, __NV_E4M3);
    const float2 back = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    word = pack_bf16(back.x * scale, back.y * scale);
  }
  if (lane * 8 < cols) {
    reinterpret_cast<uint4*>(to.exact)[lane] = raw;
    reinterpret_cast<uint4*>(to.quantised)[lane] = {words[0], words[1], words[2], words[3]};
  }
  __syncwarp();
}

// By all threads of a block, once: behind it, each warp has x.
__device__ __forceinline__ void enter_lone(const LoneSite& site, LoneSiteShared& shared,
                                           uint4 norm_weight, LoneInputs& inputs) {
  const auto pair = static_cast<int>(threadIdx.x);
  await_earlier();
  if (2 * pair < site.x.cols) shared.x[pair] = leave_pair(site, pair).x;
  __syncthreads();
  cluster_arrive_apart();  // this block has read
  put_lone(scale_lone(site, shared.x, norm_weight), site.x.cols, inputs);
}

// The weights of a warp's group of channels, in three parts. As the tensor cores' first operand:
// 24 outputs are then two tiles of 16.
struct LoneMixWeights {
  uint4 part[kStreams][kParts][kTiles];

  __device__ __forceinline__ void load(const LoneSite& site) {
    ProjectArguments project = {};
    project.fn = site.weights.fn;
    project.x = site.x;
    const int64_t channel = int64_t{threadIdx.x / kWarp} * kGroup;
    Float8 w[kStreams][kTiles];  // all under way before the first is used
#pragma unroll
    for (int i = 0; i < kStreams * kTiles; ++i) {
      w[i / kTiles][i % kTiles] = load_weights<true>(project, channel, i / kTiles, i % kTiles);
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        part[j][0][t] = narrow8(w[j][t]);
        const Float8 rest = minus(w[j][t], widen8(part[j][0][t]));
        part[j][1][t] = narrow8(rest);
        part[j][2][t] = narrow8(minus(rest, widen8(part[j][1][t])));
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          uint4& one = part[j][i][t];
          asm volatile("" : "+r"(one.x), "+r"(one.y), "+r"(one.z), "+r"(one.w));
        }
      }
    }
  }
};

// One part of a stream's 32 channels, added to the sums of 24 outputs.
__device__ __forceinline__ void multiply_lone(const uint4 (&w)[kTiles], uint4 x,
                                              float (&sums)[2][4]) {
  const uint32_t first[2][4] = {{w[0].x, w[1].x, w[0].y, w[1].y}, {w[2].x, 0, w[2].y, 0}};
  const uint32_t second[2][4] = {{w[0].z, w[1].z, w[0].w, w[1].w}, {w[2].z, 0, w[2].w, 0}};
#pragma unroll
  for (int t = 0; t < 2; ++t) multiply_add(sums[t], first[t], x.x, x.y);
#pragma unroll
  for (int t = 0; t < 2; ++t) multiply_add(sums[t], second[t], x.z, x.w);
}

// All that a site leaves for others, by one block of the cluster.
__device__ __forceinline__ void finish_lone(const LoneSite& site, LoneSiteShared& shared) {
  const auto pair = static_cast<int>(threadIdx.x);
  const int warp = pair / kWarp;
  const int lane = pair % kWarp;
  const int hidden = static_cast<int>(site.x.cols);
  const bool inside = 2 * pair < hidden;
  LoneMixWeights weights;
  weights.load(site);
  MixWeights mix_weights;
  mix_weights.load(site.weights);
  const uint4 norm_weight = load_lone_norm(site);
  await_earlier();
  LonePair own;
  if (inside) {
    own = leave_pair(site, pair);
    shared.x[pair] = own.x;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) shared.streams[j][pair] = own.streams[j];
  }
  __syncthreads();
  cluster_arrive_apart();
  // Lane q of the first four has channels 8 q .. 8 q + 7 of the warp's group; other columns are
  // rows that are not there.
  const int vector = warp * kGroupVectors + lane;
  const bool has_vector = lane < kGroupVectors && vector * 8 < hidden;
  uint4 streams[kStreams] = {};
  if (has_vector) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      streams[j] = reinterpret_cast<const uint4*>(shared.streams[j])[vector];
    }
  }
  float upper[2][4] = {};
  float rest[2][4] = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    multiply_lone(weights.part[j][0], streams[j], upper);
    multiply_lone(weights.part[j][1], streams[j], rest);
    multiply_lone(weights.part[j][2], streams[j], rest);
  }
  float part[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) part[j] = square_sum(widen8(streams[j]));
  const float squares = quad_sum((part[0] + part[1]) + (part[2] + part[3]));
  float* exchange = shared.exchange[warp];
  if (lane % 4 == 0) {
    exchange[lane / 4] = upper[0][0] + rest[0][0];
    exchange[lane / 4 + 8] = upper[0][2] + rest[0][2];
    exchange[lane / 4 + 16] = upper[1][0] + rest[1][0];
  }
  if (lane == 0) exchange[kSquares] = squares;
  __syncthreads();
  cluster_wait_apart();  // all blocks have read what is stored from here on
  if (inside && site.leave.y.data != nullptr) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      reinterpret_cast<uint32_t*>(site.leave.streams.data)[j * (hidden / 2) + pair] =
          own.streams[j];
    }
    if (site.leave.parts.rows.data != nullptr) {
      reinterpret_cast<uint32_t*>(site.leave.y.data)[pair] = own.y;
    }
  }
  if (warp == 1) {
    store8<true>(site.x.data, lane, hidden, scale_lone(site, shared.x, norm_weight));
  }
  if (warp != 0) return;
  float slices[2] = {};
#pragma unroll
  for (int g = 0; g < kLoneGroups; ++g) {
    slices[g / kSliceGroups] += shared.exchange[g][min(lane, kSquares)];
  }
  FinishArguments finish = {};
  finish.options = site.options;
  finish.mix = site.mix;
  finish.x = site.x;
  const float sum = (0.0F + slices[0]) + slices[1];
  const float rows[kFinishRows] = {sum, sum};
  write_mixes(finish, mix_weights, 0, rows);
}

}  // namespace galley::kernels::cuda
