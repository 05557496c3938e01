// hc_enter: a site's 24 mixing sums, Sinkhorn, and x = RMS(collapse(streams, carried)).
//
// Floor at the released shape: 40 KB of streams in and 10 KB of x out a row; 24 x 20,480 f32
// products a row, which CUDA cores would take longer for than the memory (60 us for 4,096 rows at
// peak, where the bytes take 45). So the projection runs on tensor cores: streams are bf16 as they
// are, and fn, f32, is the sum of two bf16 (its upper 8 bits rounded, and what is left rounded):
// each weight within 2^-17 of itself, sums in f32.
//
// Two launches. `project` cuts the channels into slices of 256 and a slice into groups of 32. A
// warp takes 16 rows and a group: one load of 16 bytes of each stream a thread feeds the products,
// both sums of squares and the collapse, so streams are read once. What it leaves in memory is
// x not yet scaled and, a slice, 26 numbers a row. `finish` adds these up in slice order, scales x,
// and does Sinkhorn in 16 lanes.
//
// A group's sums start at zero, groups are added in order within a slice, slices in order: the same
// for any number of rows. Few rows put the eight groups of a slice on eight warps, many rows give a
// warp the whole slice; both add the same numbers in the same order.
#include <algorithm>

#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kMixes = (2 + kStreams) * kStreams;  // 24
constexpr int kTiles = kMixes / 8;                 // of 8 outputs, as mma has them
constexpr int kGroup = 32;                         // channels
constexpr int kSliceGroups = 8;
constexpr int kSlice = kGroup * kSliceGroups;
constexpr int kWarps = 8;
constexpr int kTileRows = 16;
constexpr int kPieces = 2;     // bf16 parts of a weight
constexpr int kPartials = 32;  // floats a row and slice: 24 sums, squares, squares of x, six unused
constexpr int kSquares = kMixes;
constexpr int kOutSquares = kMixes + 1;
// Up to this many rows every warp has one group, so that a decode step uses all processors.
constexpr int64_t kFewRows = 256;

constexpr int kWeightBytes = kSliceGroups * kStreams * kTiles * kPieces * kWarp * 16;  // 98,304
static_assert(kMixes % 8 == 0 && kWarps == kSliceGroups);

struct ProjectArguments {
  Rows<const Bf16> streams;
  const float* fn;
  Rows<const float> carried;
  Rows<Bf16> x;
  float* partials;  // [rows, slices, kPartials]
  int64_t slices;
};

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Where a lane's weights of (group, stream, tile, piece) lie in shared memory.
__device__ __forceinline__ int weight_slot(int group, int stream, int tile, int piece) {
  return (((group * kStreams + stream) * kTiles + tile) * kPieces + piece) * kWarp;
}

// The k index of mma is free as long as both operands agree: lane q of four has channels
// 8q .. 8q + 7 of a group, the first four in the first product, the others in the second.
template <bool kWhole>
__device__ void load_weights(const ProjectArguments& args, int64_t slice, uint4* weights) {
  const int64_t hidden = args.x.cols;
  const int lane = threadIdx.x % kWarp;
  for (int item = threadIdx.x / kWarp; item < kSliceGroups * kStreams * kTiles; item += kWarps) {
    const int tile = item % kTiles;
    const int stream = item / kTiles % kStreams;
    const int group = item / kTiles / kStreams;
    const int64_t vector = (slice * kSlice + group * kGroup) / 8 + lane % 4;
    const float* row = args.fn + (tile * 8 + lane / 4) * (kStreams * hidden) + stream * hidden;
    const Float8 w = load8_f32<kWhole>(row, vector, hidden);
    Float8 rest;
    const uint4 upper = narrow8(w);
    const Float8 rounded = widen8(upper);
    for (int i = 0; i < 8; ++i) rest.v[i] = w.v[i] - rounded.v[i];
    weights[weight_slot(group, stream, tile, 0) + lane] = upper;
    weights[weight_slot(group, stream, tile, 1) + lane] = narrow8(rest);
  }
}

// A warp's share: rows lane / 4 and lane / 4 + 8 of its tile.
struct Sums {
  float mix[kTiles][4] = {};
  float squares[2] = {};
  float out_squares[2] = {};

  __device__ __forceinline__ void add(const Sums& other) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mix[t][i] += other.mix[t][i];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      squares[half] += other.squares[half];
      out_squares[half] += other.out_squares[half];
    }
  }
};
constexpr int kSumFloats = sizeof(Sums) / sizeof(float);

struct Tile {
  uint4 raw[kStreams][2];
};

template <bool kWhole>
__device__ __forceinline__ void load_tile(const ProjectArguments& args, int64_t first_row,
                                          int64_t channel, Tile& tile) {
  const int lane = threadIdx.x % kWarp;
  const int64_t hidden = args.x.cols;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + lane / 4 + 8 * half;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      tile.raw[j][half] = row < args.x.rows ? load8<kWhole>(row_of(args.streams, row) + j * hidden,
                                                            channel / 8 + lane % 4, hidden)
                                            : uint4{};
    }
  }
}

// Sums of one group of 32 channels, whose collapse is written.
template <bool kWhole>
__device__ __forceinline__ Sums group_sums(const ProjectArguments& args, const Tile& tile,
                                           const float (&pi)[2][kStreams], int64_t first_row,
                                           int64_t channel, const uint4* weights, int group) {
  const int lane = threadIdx.x % kWarp;
  Sums sums;
  Float8 x[2] = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const uint32_t first[4] = {tile.raw[j][0].x, tile.raw[j][1].x, tile.raw[j][0].y,
                               tile.raw[j][1].y};
    const uint32_t second[4] = {tile.raw[j][0].z, tile.raw[j][1].z, tile.raw[j][0].w,
                                tile.raw[j][1].w};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const uint4 w = weights[weight_slot(group, j, t, piece) + lane];
        multiply(sums.mix[t], first, w.x, w.y);
        multiply(sums.mix[t], second, w.z, w.w);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Float8 value = widen8(tile.raw[j][half]);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        sums.squares[half] = fmaf(value.v[e], value.v[e], sums.squares[half]);
        x[half].v[e] += pi[half][j] * value.v[e];
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + lane / 4 + 8 * half;
    const uint4 collapsed = narrow8(x[half]);
    sums.out_squares[half] = square_sum(widen8(collapsed));
    if (row < args.x.rows) {
      store8<kWhole>(row_of(args.x, row), channel / 8 + lane % 4, args.x.cols, collapsed);
    }
  }
  return sums;
}

__device__ __forceinline__ void load_carried(const ProjectArguments& args, int64_t first_row,
                                             float (&pi)[2][kStreams]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + lane / 4 + 8 * half;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      pi[half][j] = row < args.x.rows ? row_of(args.carried, row)[j] : 0.0F;
    }
  }
}

// A slice's sums of a warp's rows to memory.
__device__ __forceinline__ void store_sums(const ProjectArguments& args, Sums sums,
                                           int64_t first_row, int64_t slice) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    for (int distance = 1; distance < 4; distance *= 2) {
      sums.squares[half] += __shfl_xor_sync(kAllLanes, sums.squares[half], distance);
      sums.out_squares[half] += __shfl_xor_sync(kAllLanes, sums.out_squares[half], distance);
    }
    const int64_t row = first_row + lane / 4 + 8 * half;
    if (row >= args.x.rows) continue;
    float* to = args.partials + (row * args.slices + slice) * kPartials;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      *reinterpret_cast<float2*>(to + 8 * t + 2 * (lane % 4)) = {sums.mix[t][2 * half],
                                                                 sums.mix[t][2 * half + 1]};
    }
    if (lane % 4 == 0) {
      *reinterpret_cast<float2*>(to + kSquares) = {sums.squares[half], sums.out_squares[half]};
    }
  }
}

// Many rows: block (slice, part) keeps the slice's weights and goes through every part-th tile.
template <bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarp, 2) project_kernel(ProjectArguments args) {
  extern __shared__ uint4 weights[];
  const int64_t slice = blockIdx.x;
  const int warp = threadIdx.x / kWarp;
  const int64_t begin = slice * kSlice;
  load_weights<kWhole>(args, slice, weights);
  __syncthreads();
  const int64_t groups = min(int64_t{kSliceGroups}, (args.x.cols - begin + kGroup - 1) / kGroup);
  const int64_t step = int64_t{gridDim.y} * kWarps * kTileRows;
  for (int64_t first_row = (int64_t{blockIdx.y} * kWarps + warp) * kTileRows;
       first_row < args.x.rows; first_row += step) {
    float pi[2][kStreams];
    load_carried(args, first_row, pi);
    Sums total;
    Tile now;
    load_tile<kWhole>(args, first_row, begin, now);
    for (int group = 0; group < groups; ++group) {
      const int64_t channel = begin + group * kGroup;
      Tile next = now;
      if (group + 1 < groups) load_tile<kWhole>(args, first_row, channel + kGroup, next);
      total.add(group_sums<kWhole>(args, now, pi, first_row, channel, weights, group));
      now = next;
    }
    store_sums(args, total, first_row, slice);
  }
}

// Few rows: block (slice, tile) has a warp for each group.
template <bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarp) project_few_kernel(ProjectArguments args) {
  extern __shared__ uint4 weights[];
  const int64_t slice = blockIdx.x;
  const int group = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t begin = slice * kSlice;
  const int64_t channel = begin + group * kGroup;
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows;
  Tile tile;
  load_tile<kWhole>(args, first_row, channel, tile);
  float pi[2][kStreams];
  load_carried(args, first_row, pi);
  load_weights<kWhole>(args, slice, weights);
  __syncthreads();
  const Sums own = group_sums<kWhole>(args, tile, pi, first_row, channel, weights, group);
  __syncthreads();  // the weights make room for the sums
  auto* exchange = reinterpret_cast<float*>(weights);
  const auto* from = reinterpret_cast<const float*>(&own);
#pragma unroll
  for (int i = 0; i < kSumFloats; ++i) {
    exchange[(group * kSumFloats + i) * kWarp + lane] = from[i];
  }
  __syncthreads();
  if (group != 0) return;
  const int64_t groups = min(int64_t{kSliceGroups}, (args.x.cols - begin + kGroup - 1) / kGroup);
  Sums total;
  for (int g = 0; g < groups; ++g) {
    Sums part;
    auto* to = reinterpret_cast<float*>(&part);
#pragma unroll
    for (int i = 0; i < kSumFloats; ++i) to[i] = exchange[(g * kSumFloats + i) * kWarp + lane];
    total.add(part);
  }
  store_sums(args, total, first_row, slice);
}

struct FinishArguments {
  const float* partials;
  int64_t slices;
  HcWeights weights;
  HcOptions options;
  const Bf16* norm_weight;
  HcMix mix;
  Rows<Bf16> x;
};

__device__ __forceinline__ float from_lane(float x, int lane) {
  return __shfl_sync(kAllLanes, x, lane);
}

// Lane 8 + 4 i + j has a[i][j]; every sum runs in index order, as plain/ has it.
__device__ float sinkhorn(float a, const HcOptions& options) {
  const int element = (static_cast<int>(threadIdx.x) % kWarp - 8) & 15;
  const int row = 8 + (element & ~3);
  const int column = 8 + (element & 3);
  const auto row_total = [&](float x) {
    return ((from_lane(x, row) + from_lane(x, row + 1)) + from_lane(x, row + 2)) +
           from_lane(x, row + 3);
  };
  const auto column_total = [&](float x) {
    return ((from_lane(x, column) + from_lane(x, column + 4)) + from_lane(x, column + 8)) +
           from_lane(x, column + 12);
  };
  const float most = fmaxf(fmaxf(from_lane(a, row), from_lane(a, row + 1)),
                           fmaxf(from_lane(a, row + 2), from_lane(a, row + 3)));
  // Through double: the C library's expf, which plain/ calls here, is correctly rounded but for
  // rare cases.
  a = static_cast<float>(exp(static_cast<double>(a - most)));
  a = a / row_total(a) + options.hc_eps;
  a = a / (column_total(a) + options.hc_eps);
  for (int t = 1; t < options.sinkhorn_iterations; ++t) {
    a = a / (row_total(a) + options.hc_eps);
    a = a / (column_total(a) + options.hc_eps);
  }
  return a;
}

// A row's mixes from its sums, by one warp: lane m has mix m.
__device__ void coefficients(const FinishArguments& args, int64_t row, const float* partials) {
  const int lane = threadIdx.x % kWarp;
  float sum = 0.0F;
  if (lane <= kOutSquares) {
    for (int64_t slice = 0; slice < args.slices; ++slice) sum += partials[slice * kPartials + lane];
  }
  const float nu =
      inverse_rms(from_lane(sum, kSquares), kStreams * args.x.cols, args.options.norm_eps);
  const int which = lane < kStreams ? 0 : lane < 2 * kStreams ? 1 : 2;
  float value = 0.0F;
  if (lane < kMixes) value = sum * nu * args.weights.scale[which] + args.weights.base[lane];
  const float a = sinkhorn(value, args.options);
  if (lane < kStreams) {
    row_of(args.mix.pre, row)[lane] = sigmoid(value) + args.options.hc_eps;
  } else if (lane < 2 * kStreams) {
    row_of(args.mix.post, row)[lane - kStreams] = 2.0F * sigmoid(value);
  } else if (lane < kMixes) {
    row_of(args.mix.comb, row)[lane - 2 * kStreams] = a;
  }
}

constexpr int kScaleVectors = 5;

// The last warp of a block makes the coefficients, the others scale x.
template <bool kWhole>
__global__ void finish_kernel(FinishArguments args) {
  const int64_t row = blockIdx.x;
  const float* partials = args.partials + row * args.slices * kPartials;
  const int threads = static_cast<int>(blockDim.x) - kWarp;
  if (static_cast<int>(threadIdx.x) >= threads) {
    coefficients(args, row, partials);
    return;
  }
  Bf16* x = row_of(args.x, row);
  const int64_t hidden = args.x.cols;
  const int64_t vectors = (hidden + 7) / 8;
  for (int64_t first = threadIdx.x; first < vectors; first += threads * kScaleVectors) {
    uint4 raw[kScaleVectors];
#pragma unroll
    for (int i = 0; i < kScaleVectors; ++i) raw[i] = load8<kWhole>(x, first + i * threads, hidden);
    float squares = 0.0F;
    for (int64_t slice = 0; slice < args.slices; ++slice) {
      squares += __ldg(partials + slice * kPartials + kOutSquares);
    }
    const float inverse = inverse_rms(squares, hidden, args.options.norm_eps);
#pragma unroll
    for (int i = 0; i < kScaleVectors; ++i) {
      const int64_t vector = first + i * threads;
      const Float8 w = widen8(load8<kWhole>(args.norm_weight, vector, hidden));
      Float8 value = widen8(raw[i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) value.v[e] = value.v[e] * inverse * w.v[e];
      store8<kWhole>(x, vector, hidden, narrow8(value));
    }
  }
}

int64_t slice_count(int64_t hidden) { return divide_up(hidden, kSlice); }

template <bool kWhole>
void project(Stream stream, const ProjectArguments& args) {
  const int64_t rows = args.x.rows;
  const int64_t tiles = divide_up(rows, kTileRows);
  const auto slices = static_cast<unsigned>(args.slices);
  // More than 48 KB of shared memory has to be asked for, once a kernel and device.
  static const bool allowed = [] {
    return cudaFuncSetAttribute(project_kernel<kWhole>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kWeightBytes) == cudaSuccess &&
           cudaFuncSetAttribute(project_few_kernel<kWhole>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kWeightBytes) == cudaSuccess;
  }();
  CHECK(allowed);
  if (rows <= kFewRows) {
    const dim3 grid(slices, static_cast<unsigned>(tiles));
    project_few_kernel<kWhole><<<grid, kWarps * kWarp, kWeightBytes, stream>>>(args);
  } else {
    constexpr int64_t kBlocks = 264;  // two on each of 132 processors
    const int64_t parts = std::clamp<int64_t>(kBlocks / args.slices, 1, divide_up(tiles, kWarps));
    const dim3 grid(slices, static_cast<unsigned>(parts));
    project_kernel<kWhole><<<grid, kWarps * kWarp, kWeightBytes, stream>>>(args);
  }
}

}  // namespace

int64_t hc_enter_workspace_bytes(int64_t rows, int64_t hidden) {
  return rows * slice_count(hidden) * kPartials * static_cast<int64_t>(sizeof(float));
}

void hc_enter(Stream stream, Rows<const Bf16> streams, const HcWeights& weights,
              const HcOptions& options, Rows<const float> carried, const Bf16* norm_weight,
              HcMix mix, Rows<Bf16> x, void* workspace) {
  CHECK(options.streams == kStreams && streams.cols == kStreams * x.cols);
  if (x.rows == 0) return;
  const int64_t slices = slice_count(x.cols);
  auto* partials = static_cast<float*>(workspace);
  const ProjectArguments args{streams, weights.fn, carried, x, partials, slices};
  const FinishArguments finish{partials, slices, weights, options, norm_weight, mix, x};
  const bool whole = is_whole(streams) && is_whole(x) && x.cols % 8 == 0 &&
                     is_whole(weights.fn, x.cols) && is_whole(norm_weight, x.cols);
  const auto grid = static_cast<unsigned>(x.rows);
  const int threads = std::min(row_threads(x.cols, kScaleVectors), 256) + kWarp;
  if (whole) {
    project<true>(stream, args);
    finish_kernel<true><<<grid, threads, 0, stream>>>(finish);
  } else {
    project<false>(stream, args);
    finish_kernel<false><<<grid, threads, 0, stream>>>(finish);
  }
}

}  // namespace galley::kernels::cuda
