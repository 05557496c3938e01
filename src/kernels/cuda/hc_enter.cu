// hc_enter: a site's 24 mixing sums, Sinkhorn, and x = RMS(collapse(streams, carried)).
//
// Floor at the released shape: 40 KB of streams in and 10 KB of x out a row; 24 x 20,480 f32
// products a row, which CUDA cores would take longer for than the memory (60 us for 4,096 rows at
// peak, where the bytes take 45). So the projection runs on tensor cores: streams are bf16 as they
// are, and fn, f32, is the sum of two bf16 (its upper 8 bits rounded, and what is left rounded):
// each weight within 2^-17 of itself, sums in f32.
//
// Two launches. `project` cuts the channels into slices of 256, a slice into eight groups of 32. A
// block keeps a slice and goes through tiles of 16 rows, which bulk copies bring into a ring of
// stages; each of its warps keeps the weights of one group of all streams in 96 registers, so that
// shared memory carries streams alone. A stage feeds the products, both sums of squares and the
// collapse: streams are read once. What it leaves in memory is x not yet scaled and, a slice, 26
// numbers a row. `finish` adds these up in slice order, scales x, and does Sinkhorn in 16 lanes.
//
// A group's sums start at zero, groups are added in order within a slice, slices in order: the same
// for any number of rows.
//
// Measured: 688 us for 16,384 rows (project 540, finish 155; the bytes take 207), 13 us for 64. A
// first version with weights in shared memory and rows loaded straight to registers took 511 us.
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
constexpr int kWarps = kSliceGroups;
constexpr int kTileRows = 16;
constexpr int kPieces = 2;     // bf16 parts of a weight
constexpr int kPartials = 32;  // floats a row and slice: 24 sums, squares, squares of x, six unused
constexpr int kSquares = kMixes;
constexpr int kOutSquares = kMixes + 1;
static_assert(kMixes % 8 == 0);

// A stage: 16 rows of each stream; 64 bytes of padding put two rows' loads on different banks.
constexpr int kRing = 5;
constexpr int kPitch = kSlice * 2 + 64;
constexpr int kStageBytes = kStreams * kTileRows * kPitch;
// What warps hand each other: 26 sums a row, two buffers.
constexpr int kExchangePitch = 40;  // floats a row
constexpr int kExchangeFloats = kWarps * kTileRows * kExchangePitch;
constexpr int kExchangeBytes = 2 * kExchangeFloats * static_cast<int>(sizeof(float));
constexpr int kSharedBytes = kRing * kStageBytes + kExchangeBytes + (kRing + 2) * 8;
static_assert(kSharedBytes <= 227 * 1024);

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

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Blocks until the barrier's phase of this parity is over.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Stages of the tiles to come, each with a barrier that its copies complete.
struct Ring {
  uint32_t base;  // shared addresses of the first stage and of its barrier
  uint32_t barriers;

  __device__ __forceinline__ uint32_t stage(int64_t turn) const {
    return base + static_cast<uint32_t>(turn % kRing) * kStageBytes;
  }
  __device__ __forceinline__ uint32_t barrier(int64_t turn) const {
    return barriers + static_cast<uint32_t>(turn % kRing) * 8;
  }
};

// The first row of the block's `turn`-th tile.
__device__ __forceinline__ int64_t tile_row(int64_t turn) {
  return (int64_t{blockIdx.y} + turn * gridDim.y) * kTileRows;
}

// A warp brings a tile, a bulk copy for each row and stream.
__device__ __forceinline__ void copy_tile(const ProjectArguments& args, const Ring& ring,
                                          int64_t begin, int64_t turn) {
  const int64_t first_row = tile_row(turn);
  if (first_row >= args.x.rows) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t hidden = args.x.cols;
  const auto bytes = static_cast<uint32_t>(min(int64_t{kSlice}, hidden - begin) * 2);
  const auto rows = static_cast<int>(min(int64_t{kTileRows}, args.x.rows - first_row));
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ring.barrier(turn)),
                 "r"(rows * kStreams * bytes)
                 : "memory");
  }
  __syncwarp();
  for (int item = lane; item < kStreams * kTileRows; item += kWarp) {
    const int row = item % kTileRows;
    const int stream = item / kTileRows;
    if (row >= rows) continue;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(ring.stage(turn) + item * kPitch),
        "l"(row_of(args.streams, first_row + row) + stream * hidden + begin), "r"(bytes),
        "r"(ring.barrier(turn))
        : "memory");
  }
}

// The k index of mma is free as long as both operands agree: lane q of four has channels
// 8q .. 8q + 7 of a group, the first four in the first product, the others in the second.
struct Weights {
  uint4 piece[kStreams][kTiles][kPieces];
};

template <bool kWhole>
__device__ __forceinline__ void load_weights(const ProjectArguments& args, int64_t channel,
                                             Weights& weights) {
  const int64_t hidden = args.x.cols;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float* row = args.fn + (tile * 8 + lane / 4) * (kStreams * hidden) + j * hidden;
      const Float8 w = load8_f32<kWhole>(row, channel / 8 + lane % 4, hidden);
      const uint4 upper = narrow8(w);
      Float8 rest = widen8(upper);
#pragma unroll
      for (int i = 0; i < 8; ++i) rest.v[i] = w.v[i] - rest.v[i];
      weights.piece[j][tile][0] = upper;
      weights.piece[j][tile][1] = narrow8(rest);
    }
  }
}

// A warp's 16 rows of one group: rows lane / 4 and lane / 4 + 8.
struct Tile {
  uint4 raw[kStreams][2];
};

struct Sums {
  float mix[kTiles][4];
  float squares[2] = {};
  float out_squares[2] = {};
};

// Sums of one group of 32 channels, whose collapse is written.
template <bool kWhole>
__device__ __forceinline__ Sums group_sums(const ProjectArguments& args, const Tile& tile,
                                           const float (&pi)[2][kStreams], int64_t first_row,
                                           int64_t channel, const Weights& weights) {
  const int lane = threadIdx.x % kWarp;
  Sums sums;
  // A chain for each piece: six chains hide the latency of a product.
  float chain[kPieces][kTiles][4] = {};
  Float8 x[2] = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const uint32_t first[4] = {tile.raw[j][0].x, tile.raw[j][1].x, tile.raw[j][0].y,
                               tile.raw[j][1].y};
    const uint32_t second[4] = {tile.raw[j][0].z, tile.raw[j][1].z, tile.raw[j][0].w,
                                tile.raw[j][1].w};
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 w = weights.piece[j][t][piece];
        multiply(chain[piece][t], first, w.x, w.y);
      }
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 w = weights.piece[j][t][piece];
        multiply(chain[piece][t], second, w.z, w.w);
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
    for (int distance = 1; distance < 4; distance *= 2) {
      sums.squares[half] += __shfl_xor_sync(kAllLanes, sums.squares[half], distance);
      sums.out_squares[half] += __shfl_xor_sync(kAllLanes, sums.out_squares[half], distance);
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.mix[t][i] = chain[0][t][i] + chain[1][t][i];
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

// A warp's part of a tile, from the ring or, where rows cannot be copied in bulk, from memory.
template <bool kWhole>
__device__ __forceinline__ Tile load_tile(const ProjectArguments& args, const uint8_t* stage,
                                          int64_t first_row, int64_t channel) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t hidden = args.x.cols;
  Tile tile = {};
  if (kWhole && channel + lane % 4 * 8 >= hidden) return tile;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int in_tile = lane / 4 + 8 * half;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      if constexpr (kWhole) {
        tile.raw[j][half] = *reinterpret_cast<const uint4*>(
            stage + (j * kTileRows + in_tile) * kPitch + (warp * kGroup + lane % 4 * 8) * 2);
      } else if (first_row + in_tile < args.x.rows) {
        tile.raw[j][half] = load8<false>(row_of(args.streams, first_row + in_tile) + j * hidden,
                                         channel / 8 + lane % 4, hidden);
      }
    }
  }
  return tile;
}

__device__ __forceinline__ void store_sums(const Sums& sums, float* buffer) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* to = buffer + (warp * kTileRows + lane / 4 + 8 * half) * kExchangePitch;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      *reinterpret_cast<float2*>(to + 8 * t + lane % 4 * 2) = {sums.mix[t][2 * half],
                                                               sums.mix[t][2 * half + 1]};
    }
    if (lane % 4 == 0) {
      *reinterpret_cast<float2*>(to + kSquares) = {sums.squares[half], sums.out_squares[half]};
    }
  }
}

// The groups' sums of a tile, added in order: a warp has two rows.
__device__ __forceinline__ void add_groups(const ProjectArguments& args, const float* buffer,
                                           int64_t first_row, int groups) {
  const int lane = threadIdx.x % kWarp;
  if (lane > kOutSquares) return;
  for (int row = threadIdx.x / kWarp; row < kTileRows; row += kWarps) {
    if (first_row + row >= args.x.rows) return;
    float total = 0.0F;
    for (int g = 0; g < groups; ++g) {
      total += buffer[(g * kTileRows + row) * kExchangePitch + lane];
    }
    args.partials[((first_row + row) * args.slices + blockIdx.x) * kPartials + lane] = total;
  }
}

// Block (slice, part) goes through every part-th tile of 16 rows. A tile's sums are added while the
// next one is multiplied. Two buffers suffice: who writes one again has waited for all warps to
// write the other, which they did after reading this one.
template <bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarp, 1) project_kernel(ProjectArguments args) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* exchange = reinterpret_cast<float*>(shared + kRing * kStageBytes);
  const Ring ring{shared_address(shared),
                  shared_address(shared + kRing * kStageBytes + kExchangeBytes)};
  const uint32_t written = ring.barriers + kRing * 8;  // two: all warps wrote their sums
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t begin = int64_t{blockIdx.x} * kSlice;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRing; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(ring.barrier(i)) : "memory");
    }
    for (uint32_t i = 0; i < 2; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(written + i * 8), "r"(kWarps)
                   : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (kWhole && warp < kRing) copy_tile(args, ring, begin, warp);
  const int64_t channel = begin + warp * kGroup;
  const int groups =
      static_cast<int>(min(int64_t{kSliceGroups}, (args.x.cols - begin + kGroup - 1) / kGroup));
  Weights weights;
  load_weights<kWhole>(args, channel, weights);
  const auto finish_tile = [&](int64_t turn) {
    wait(written + static_cast<uint32_t>(turn % 2) * 8, static_cast<uint32_t>(turn / 2) & 1U);
    // Everybody has read the stage too: it takes the tile that is kRing turns ahead.
    if (kWhole && warp == turn % kWarps) copy_tile(args, ring, begin, turn + kRing);
    add_groups(args, exchange + turn % 2 * kExchangeFloats, tile_row(turn), groups);
  };
  float next_pi[2][kStreams];
  load_carried(args, tile_row(0), next_pi);
  int64_t turn = 0;
  for (; tile_row(turn) < args.x.rows; ++turn) {
    float pi[2][kStreams];
#pragma unroll
    for (int i = 0; i < 2 * kStreams; ++i)
      pi[i / kStreams][i % kStreams] = next_pi[i / kStreams][i % kStreams];
    load_carried(args, tile_row(turn + 1), next_pi);
    if (kWhole) wait(ring.barrier(turn), static_cast<uint32_t>(turn / kRing) & 1U);
    const Tile tile =
        load_tile<kWhole>(args, shared + turn % kRing * kStageBytes, tile_row(turn), channel);
    const Sums sums = group_sums<kWhole>(args, tile, pi, tile_row(turn), channel, weights);
    if (turn > 0) finish_tile(turn - 1);
    store_sums(sums, exchange + turn % 2 * kExchangeFloats);
    __syncwarp();
    if (lane == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                       written + static_cast<uint32_t>(turn % 2) * 8)
                   : "memory");
    }
  }
  finish_tile(turn - 1);
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

// Sinkhorn of two rows in one warp: lane 16 r + 4 i + j has a[i][j] of row r. Every sum runs in
// index order, as plain/ has it.
__device__ float sinkhorn(float a, const HcOptions& options) {
  const int lane = threadIdx.x % kWarp;
  const int row = lane & ~3;
  const int column = (lane & ~15) + (lane & 3);
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

constexpr int kFinishRows = 2;  // of a block
constexpr int kScaleVectors = 5;

// The mixes of two rows from their sums, by one warp.
__device__ void coefficients(const FinishArguments& args, int64_t first_row) {
  const int lane = threadIdx.x % kWarp;
  const int64_t slices = args.slices;
  float sum[kFinishRows] = {};
  for (int64_t slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int r = 0; r < kFinishRows; ++r) {
      if (lane > kOutSquares || first_row + r >= args.x.rows) continue;
      sum[r] += __ldg(args.partials + ((first_row + r) * slices + slice) * kPartials + lane);
    }
  }
  const int place = lane % 16;
  const int64_t row = first_row + lane / 16;
  const auto mix = [&](int index) {  // of this half's row
    const float first = from_lane(sum[0], index);
    const float second = from_lane(sum[1], index);
    return lane < 16 ? first : second;
  };
  const float nu = inverse_rms(mix(kSquares), kStreams * args.x.cols, args.options.norm_eps);
  const float* scale = args.weights.scale;
  const float* base = args.weights.base;
  const float gate = mix(place % 8) * nu * scale[place / 4 % 2] + base[place % 8];
  const float a = sinkhorn(mix(8 + place) * nu * scale[2] + base[8 + place], args.options);
  if (row >= args.x.rows) return;
  row_of(args.mix.comb, row)[place] = a;
  if (place < kStreams) {
    row_of(args.mix.pre, row)[place] = sigmoid(gate) + args.options.hc_eps;
  } else if (place < 2 * kStreams) {
    row_of(args.mix.post, row)[place - kStreams] = 2.0F * sigmoid(gate);
  }
}

// A block has two rows: its last warp makes their coefficients, each half of the others scales x.
template <bool kWhole>
__global__ void __launch_bounds__(kFinishRows * 256 + kWarp) finish_kernel(FinishArguments args) {
  const int64_t first_row = int64_t{blockIdx.x} * kFinishRows;
  const int threads = (static_cast<int>(blockDim.x) - kWarp) / kFinishRows;
  const int which = static_cast<int>(threadIdx.x) / threads;
  if (which == kFinishRows) {
    coefficients(args, first_row);
    return;
  }
  const int64_t row = first_row + which;
  if (row >= args.x.rows) return;
  Bf16* x = row_of(args.x, row);
  const float* squares_of = args.partials + row * args.slices * kPartials + kOutSquares;
  const int64_t hidden = args.x.cols;
  const int64_t vectors = (hidden + 7) / 8;
  for (int64_t first = threadIdx.x % threads; first < vectors; first += threads * kScaleVectors) {
    uint4 raw[kScaleVectors];
#pragma unroll
    for (int i = 0; i < kScaleVectors; ++i) raw[i] = load8<kWhole>(x, first + i * threads, hidden);
    float squares = 0.0F;
#pragma unroll 4
    for (int64_t slice = 0; slice < args.slices; ++slice) {
      squares += __ldg(squares_of + slice * kPartials);
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
  constexpr int64_t kBlocks = 132;  // one a processor
  // More than 48 KB of shared memory has to be asked for, once a kernel and device.
  static const bool allowed =
      cudaFuncSetAttribute(project_kernel<kWhole>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kSharedBytes) == cudaSuccess;
  CHECK(allowed);
  const int64_t tiles = divide_up(args.x.rows, kTileRows);
  const int64_t parts = std::min(std::max<int64_t>(kBlocks / args.slices, 1), tiles);
  const dim3 grid(static_cast<unsigned>(args.slices), static_cast<unsigned>(parts));
  project_kernel<kWhole><<<grid, kWarps * kWarp, kSharedBytes, stream>>>(args);
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
  const auto grid = static_cast<unsigned>(divide_up(x.rows, kFinishRows));
  const int threads = std::min(row_threads(x.cols, kScaleVectors), 256) * kFinishRows + kWarp;
  if (whole) {
    project<true>(stream, args);
    finish_kernel<true><<<grid, threads, 0, stream>>>(finish);
  } else {
    project<false>(stream, args);
    finish_kernel<false><<<grid, threads, 0, stream>>>(finish);
  }
}

}  // namespace galley::kernels::cuda
