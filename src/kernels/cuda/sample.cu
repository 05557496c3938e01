// Sampling from all of a row, or its best token. Floor: the logits read once (517 KB a row); they
// are read twice, since exponentials are taken relative to the row's largest logit, the second time
// from L2 while rows are few.
//
// A row is cut into chunks of 64 blocks of 64 logits. `peak` leaves each chunk's largest logit and
// where it is; `weigh` each block's sum of exponentials, in the lanes of engine/logit_math, and
// each chunk's sum of these in double; `choose`, a warp a row, walks chunks, blocks and logits. Of
// a small vocabulary a block does all three for a row, with the same sums.
#include "base/random.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_weight.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kBlock = 64;  // logits summed in f32, as the host's kLogitBlock
constexpr int kLanes = 16;  // that share a block, four logits each
constexpr int kParts = kBlock / kLanes;
constexpr int kChunkBlocks = 64;
constexpr int kChunk = kBlock * kChunkBlocks;
constexpr int kThreads = 256;
constexpr int kTurns = kChunkBlocks * kLanes / kThreads;  // blocks a thread takes part in

struct Peak {
  float value;
  int32_t token;  // the lowest with this value; -1: none, or a NaN was among them
};

struct Arguments {
  Rows<const float> logits;
  const DrawRequest* requests;
  DrawnToken* tokens;
  int64_t chunks;
  Peak* peaks;        // [rows, chunks]
  double* totals;     // [rows, chunks, 2]: at temperature 1, and at the row's own
  float* block_sums;  // [rows, chunks * kChunkBlocks], at the row's own
};

// The better one; NaN, marked by token -1, is better than all, an empty place worse.
__device__ __forceinline__ Peak better(Peak a, Peak b) {
  if (isnan(a.value)) return a;
  if (isnan(b.value)) return b;
  if (a.value != b.value) return a.value > b.value ? a : b;
  return static_cast<unsigned>(a.token) <= static_cast<unsigned>(b.token) ? a : b;
}

__device__ __forceinline__ Peak warp_best(Peak best) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    best = better(best, {__shfl_xor_sync(kAllLanes, best.value, distance),
                         __shfl_xor_sync(kAllLanes, best.token, distance)});
  }
  return best;
}

// Which logits of a chunk a thread has: of block `turn * kThreads / kLanes + thread / kLanes`, lane
// thread % kLanes of each part. Threads beyond kThreads have a chunk of their own.
__device__ __forceinline__ int thread_of_chunk() {
  return static_cast<int>(threadIdx.x) % kThreads;
}

__device__ __forceinline__ int64_t first_logit(int64_t chunk, int turn) {
  const int block = turn * (kThreads / kLanes) + thread_of_chunk() / kLanes;
  return chunk * kChunk + block * kBlock + threadIdx.x % kLanes;
}

__device__ __forceinline__ void load(const Arguments& args, int64_t at_row, int64_t chunk,
                                     float (&x)[kTurns][kParts]) {
  const float* row = row_of(args.logits, at_row);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = first_logit(chunk, turn) + part * kLanes;
      x[turn][part] = at < args.logits.cols ? row[at] : -INFINITY;
    }
  }
}

// Of a warp's logits.
__device__ __forceinline__ Peak peak_of(const float (&x)[kTurns][kParts], int64_t chunk) {
  Peak best = {-INFINITY, -1};
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const auto token = static_cast<int32_t>(first_logit(chunk, turn) + part * kLanes);
      best = better(best, {x[turn][part], isnan(x[turn][part]) ? -1 : token});
    }
  }
  return warp_best(best);
}

__global__ void __launch_bounds__(kThreads) peak_kernel(Arguments args) {
  await_earlier();
  if (args.requests[blockIdx.y].is_cut()) return;
  __shared__ Peak scratch[kThreads / kWarp];
  float x[kTurns][kParts];
  load(args, blockIdx.y, blockIdx.x, x);
  Peak best = peak_of(x, blockIdx.x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const Peak& other : scratch) best = better(best, other);
  args.peaks[int64_t{blockIdx.y} * args.chunks + blockIdx.x] = best;
}

// By a whole warp, in each lane.
__device__ __forceinline__ Peak row_peak(const Arguments& args, int64_t row) {
  Peak best = {-INFINITY, -1};
  for (int64_t chunk = threadIdx.x % kWarp; chunk < args.chunks; chunk += kWarp) {
    best = better(best, args.peaks[row * args.chunks + chunk]);
  }
  return warp_best(best);
}

// A block's sum, in all of its 16 lanes.
__device__ __forceinline__ float block_weight(const float (&x)[kParts], float peak, float scale) {
  static_assert(kParts == 4);
  float sum = (weight(x[0], peak, scale) + weight(x[1], peak, scale)) +
              (weight(x[2], peak, scale) + weight(x[3], peak, scale));
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  return sum;
}

// Sums of exponentials: of a chunk's blocks, at the row's own temperature, and of a warp's, at 1
// and at the row's own.
struct WarpSums {
  double plain = 0.0;
  double scaled = 0.0;
};
__device__ __forceinline__ WarpSums weigh(const DrawRequest& request,
                                          const float (&x)[kTurns][kParts], float peak,
                                          float* block_sums) {
  const float scale = draws(request) ? 1.0F / request.temperature : 1.0F;
  WarpSums sums;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const float sum = block_weight(x[turn], peak, 1.0F);
    const float own = scale == 1.0F ? sum : block_weight(x[turn], peak, scale);
    sums.plain += sum;
    sums.scaled += own;
    if (threadIdx.x % kLanes == 0) {
      block_sums[turn * (kThreads / kLanes) + thread_of_chunk() / kLanes] = own;
    }
  }
  sums.plain += __shfl_xor_sync(kAllLanes, sums.plain, kLanes);  // a warp has two blocks at a time
  sums.scaled += __shfl_xor_sync(kAllLanes, sums.scaled, kLanes);
  return sums;
}

__global__ void __launch_bounds__(kThreads) weigh_kernel(Arguments args) {
  await_earlier();
  __shared__ double scratch[kThreads / kWarp][2];
  const int64_t row = blockIdx.y;
  if (args.requests[row].is_cut()) return;
  float x[kTurns][kParts];
  load(args, row, blockIdx.x, x);
  const float peak = row_peak(args, row).value;
  const WarpSums sums = weigh(args.requests[row], x, peak,
                              args.block_sums + (row * args.chunks + blockIdx.x) * kChunkBlocks);
  if (threadIdx.x % kWarp == 0) {
    scratch[threadIdx.x / kWarp][0] = sums.plain;
    scratch[threadIdx.x / kWarp][1] = sums.scaled;
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  double total = 0.0;
  for (const auto& warp : scratch) total += warp[threadIdx.x];
  args.totals[(row * args.chunks + blockIdx.x) * 2 + threadIdx.x] = total;
}

// Where a running sum of `count` weights passes `left`, which then counts from there. Weights of
// zero are passed over; if rounding left the target past the end, the last one used.
template <class Weight>
__device__ int64_t walk(int64_t count, double& left, Weight&& weight_at) {
  int64_t chosen = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double here = weight_at(i);
    if (!(here > 0.0)) continue;
    chosen = i;
    if (left < here) break;
    left -= here;
  }
  return chosen;
}

constexpr int kChunksMax = kSampleVocabMax / kChunk;

// What one warp walks over, brought by all its lanes at once.
struct Walked {
  double totals[kChunksMax];  // of chunks, at the row's own temperature
  float weights[kBlock];      // of blocks, then of logits
};
static_assert(kBlock == kChunkBlocks);

// block_sums: the row's.
__device__ int32_t draw(const Arguments& args, int64_t row, float peak, const float* block_sums,
                        Walked& walked) {
  const int lane = threadIdx.x % kWarp;
  const DrawRequest& request = args.requests[row];
  double total = 0.0;
  for (int64_t chunk = 0; chunk < args.chunks; ++chunk) total += walked.totals[chunk];
  double left =
      random_unit(request.seed, static_cast<uint64_t>(request.position), request.stream) * total;
  const auto weight_at = [&](int64_t i) { return static_cast<double>(walked.weights[i]); };
  // Every lane walks alike.
  const int64_t chunk = walk(args.chunks, left, [&](int64_t i) { return walked.totals[i]; });
  const float* sums = block_sums + chunk * kChunkBlocks;
  for (int i = lane; i < kChunkBlocks; i += kWarp) walked.weights[i] = sums[i];
  __syncwarp();
  const int64_t begin = chunk * kChunk + walk(kChunkBlocks, left, weight_at) * kBlock;
  __syncwarp();
  for (int i = lane; i < kBlock; i += kWarp) {
    walked.weights[i] = begin + i < args.logits.cols ? weight(row_of(args.logits, row)[begin + i],
                                                              peak, 1.0F / request.temperature)
                                                     : 0.0F;
  }
  __syncwarp();
  return static_cast<int32_t>(begin + walk(kBlock, left, weight_at));
}

// By a warp, from the row's totals and block sums.
__device__ __forceinline__ void choose(const Arguments& args, int64_t row, const Peak& peak,
                                       const double* totals, const float* block_sums,
                                       Walked& walked) {
  DrawnToken result;
  if (isfinite(peak.value)) {
    double plain = 0.0;  // lanes add chunks of their own, then each other: an order of its own
    for (int64_t chunk = threadIdx.x % kWarp; chunk < args.chunks; chunk += kWarp) {
      plain += totals[chunk * 2];
      walked.totals[chunk] = totals[chunk * 2 + 1];
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      plain += __shfl_xor_sync(kAllLanes, plain, distance);
    }
    __syncwarp();
    result.valid = 1;
    result.token =
        draws(args.requests[row]) ? draw(args, row, peak.value, block_sums, walked) : peak.token;
    result.logprob =
        row_of(args.logits, row)[result.token] - (peak.value + static_cast<float>(log(plain)));
  }
  if (threadIdx.x % kWarp == 0) args.tokens[row] = result;
}

__global__ void __launch_bounds__(kWarp) choose_kernel(Arguments args) {
  await_earlier();
  __shared__ Walked walked;
  const int64_t row = blockIdx.x;
  if (args.requests[row].is_cut()) return;
  choose(args, row, row_peak(args, row), args.totals + row * args.chunks * 2,
         args.block_sums + row * args.chunks * kChunkBlocks, walked);
}

// All of it by one block a row, where a vocabulary is small: kThreads threads a chunk.
constexpr int kSmallChunks = 2;

__global__ void __launch_bounds__(kThreads* kSmallChunks)
    small_kernel(const __grid_constant__ Arguments args) {
  await_earlier();
  constexpr int kChunkWarps = kThreads / kWarp;
  __shared__ Peak peaks[kSmallChunks][kChunkWarps];
  __shared__ double warp_sums[kSmallChunks][kChunkWarps][2];
  __shared__ double totals[kSmallChunks][2];
  __shared__ float block_sums[kSmallChunks][kChunkBlocks];
  __shared__ Walked walked;
  const int64_t row = blockIdx.x;
  if (args.requests[row].is_cut()) return;
  const int chunk = static_cast<int>(threadIdx.x) / kThreads;
  const int warp = thread_of_chunk() / kWarp;
  float x[kTurns][kParts];
  load(args, row, chunk, x);
  const Peak own = peak_of(x, chunk);
  if (threadIdx.x % kWarp == 0) peaks[chunk][warp] = own;
  __syncthreads();
  Peak peak = {-INFINITY, -1};
  for (int c = 0; c < args.chunks; ++c) {
    for (const Peak& other : peaks[c]) peak = better(peak, other);
  }
  const WarpSums sums = weigh(args.requests[row], x, peak.value, block_sums[chunk]);
  if (threadIdx.x % kWarp == 0) {
    warp_sums[chunk][warp][0] = sums.plain;
    warp_sums[chunk][warp][1] = sums.scaled;
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  if (threadIdx.x < 2 * args.chunks) {
    double total = 0.0;
    for (const auto& of_warp : warp_sums[threadIdx.x / 2]) total += of_warp[threadIdx.x % 2];
    totals[threadIdx.x / 2][threadIdx.x % 2] = total;
  }
  __syncwarp();
  choose(args, row, peak, totals[0], block_sums[0], walked);
}

int64_t chunk_count(int64_t vocab) { return divide_up(vocab, kChunk); }

}  // namespace

int64_t sample_workspace_bytes(int64_t rows, int64_t vocab) {
  const auto a_chunk = static_cast<int64_t>(2 * sizeof(double) + sizeof(Peak)) +
                       kChunkBlocks * static_cast<int64_t>(sizeof(float));
  return rows * chunk_count(vocab) * a_chunk;
}

void sample(Stream stream, Rows<const float> logits, const DrawRequest* requests,
            DrawnToken* tokens, void* workspace) {
  CHECK(logits.cols <= kSampleVocabMax && logits.rows < 65536);
  if (logits.rows == 0) return;
  const int64_t chunks = chunk_count(logits.cols);
  auto* totals = static_cast<double*>(workspace);
  auto* peaks = reinterpret_cast<Peak*>(totals + logits.rows * chunks * 2);
  auto* block_sums = reinterpret_cast<float*>(peaks + logits.rows * chunks);
  const Arguments args{logits, requests, tokens, chunks, peaks, totals, block_sums};
  if (chunks <= kSmallChunks) {
    launch_kernel(small_kernel,
                  {static_cast<unsigned>(logits.rows), static_cast<unsigned>(kThreads * chunks)},
                  stream, args);
    return;
  }
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(logits.rows));
  launch_kernel(peak_kernel, {grid, kThreads}, stream, args);
  launch_kernel(weigh_kernel, {grid, kThreads}, stream, args);
  launch_kernel(choose_kernel, {static_cast<unsigned>(logits.rows), kWarp}, stream, args);
}

}  // namespace galley::kernels::cuda
