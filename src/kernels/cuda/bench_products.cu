// The products of quantised weights at the released shapes: experts (fp8 x fp4) and dense (fp8).
// Peers: docs/benchmarks.md says which and how they were measured.
#include <numeric>
#include <random>

#include "kernels/cuda/bench_device.cuh"
#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/fold_weights.h"
#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/kernel_bench.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/weight_tiles.h"
#include "kernels/cuda/wgmma_e4m3.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int64_t kRotatedBytes = 200'000'000;  // several times the 60 MB of L2
constexpr int64_t kHidden = 5120;
constexpr int64_t kInner = 2304;

__global__ void fill_fp4_tiles(uint32_t* data, int64_t words, uint32_t seed) {
  constexpr int64_t kStripWords = (kFp4Codes + kFp4Shifts) / 4;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint32_t random = bench_hash(static_cast<uint64_t>(i), seed);
    // Shifts -1 to 6: what the scales of a row usually span.
    data[i] = i % kStripWords < kFp4Codes / 4 ? random : 0x77777777U + (random & 0x77777777U);
  }
}

__global__ void fill_fp8_tiles(uint32_t* data, int64_t words, uint32_t seed) {
  constexpr int64_t kPairWords = 2 * (kFp8Codes + kFp8Scales) / 4;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    data[i] = i % kPairWords < 2 * kFp8Codes / 4
                  ? bench_hash(static_cast<uint64_t>(i), seed) & 0xf7f7f7f7U  // no NaN
                  : __float_as_uint(1.0F / 1024.0F);
  }
}

__global__ void fill_bf16(Bf16* data, int64_t count, uint32_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint32_t random = bench_hash(static_cast<uint64_t>(i), seed);
    float sum = -2.0F;  // of four uniform numbers: nearly normal
    for (int32_t part = 0; part < 4; ++part) {
      sum += static_cast<float>((random >> (8 * part)) & 255) * (1.0F / 255.0F);
    }
    data[i].bits = static_cast<uint16_t>(__float_as_uint(1.7F * sum) >> 16);
  }
}

__global__ void fill_f32(float* data, int64_t count, float value) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    data[i] = value;
  }
}

__global__ void __launch_bounds__(1024)
    read_kernel(const uint4* data, int64_t count, uint32_t* out) {
  uint32_t seen = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 value[8];
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) value[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) seen ^= value[k].x ^ value[k].y ^ value[k].z ^ value[k].w;
  }
  if (seen == 0x12345678) *out = seen;
}

// Four warpgroups of 64 x 96 x 32 products, A in registers and B in shared memory, nothing else.
constexpr int32_t kPeakTokens = 96;
constexpr int32_t kPeakThreads = 512;
constexpr int32_t kPeakProducts = 16;  // between two waits

__global__ void __launch_bounds__(kPeakThreads, 1) wgmma_peak_kernel(int32_t rounds, float* out) {
  extern __shared__ uint8_t operands[];
  const uint32_t begin = (shared_address(operands) + 1023) & ~1023U;
  for (uint32_t i = threadIdx.x; i < kPeakTokens * kChunk / 4; i += blockDim.x) {
    const uint32_t random = bench_hash(i, blockIdx.x) & 0xb7b7b7b7U;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(begin + 4 * i), "r"(random) : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  uint32_t a[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) a[i] = bench_hash(threadIdx.x * 4 + i, 7) & 0xb7b7b7b7U;
  float sum[kPeakTokens / 2];
#pragma unroll
  for (float& value : sum) value = 0.0F;
  const uint64_t b = swizzled_descriptor(warp_uniform(begin));
  for (int32_t round = 0; round < rounds; ++round) {
    wgmma_fence();
#pragma unroll
    for (int32_t j = 0; j < kPeakProducts; ++j) {
      Wgmma<kPeakTokens, true>::run(sum, a, advance_descriptor(b, 32 * (j % 4)), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
  float total = 0.0F;
#pragma unroll
  for (float value : sum) total += value;
  if (total == 12345.0F) *out = total;
}

// Rows of each expert: evenly, or drawn with weights 1 / rank as text does it.
std::vector<int32_t> spread_rows(int32_t experts, int64_t rows, bool skewed) {
  std::vector<int32_t> counts(static_cast<size_t>(experts));
  if (!skewed) {
    for (int64_t i = 0; i < rows; ++i) {
      ++counts[static_cast<size_t>(rows < experts ? i * experts / rows : i % experts)];
    }
    return counts;
  }
  std::vector<double> weights;
  for (int32_t i = 0; i < experts; ++i) weights.push_back(1.0 / (i + 1));
  std::mt19937 random(1);
  std::discrete_distribution<int32_t> draw(weights.begin(), weights.end());
  for (int64_t i = 0; i < rows; ++i) ++counts[static_cast<size_t>(draw(random))];
  return counts;
}

struct ExpertCase {
  int64_t rows;
  bool skewed;
};
constexpr ExpertCase kExpertCases[] = {{8, false},   {64, false},    {64, true},
                                       {512, false}, {512, true},    {4096, false},
                                       {4096, true}, {98304, false}, {98304, true}};
struct ExpertPeers {
  int32_t experts;
  bool down;
  double us[9];  // in the order of kExpertCases: the best of all peers, fp8 weights
};
constexpr ExpertPeers kExpertPeers[] = {
    {7, false, {46, 46, 46, 49, 53, 167, 164, 3713, 3676}},
    {52, false, {55, 325, 152, 317, 307, 343, 372, 3725, 3443}},
    {384, false, {54, 390, 228, 2290, 981, 2323, 2233, 4223, 5450}},
    {7, true, {29, 26, 26, 29, 29, 91, 100, 2008, 1876}},
    {52, true, {32, 162, 76, 162, 158, 190, 228, 2076, 1815}},
    {384, true, {32, 200, 119, 1157, 496, 1169, 1123, 2033, 2543}},
};

struct DensePeers {
  int64_t outputs;
  int64_t inputs;
  double us[7];  // rows of kDenseRows
};
constexpr int64_t kDenseRows[] = {1, 8, 64, 256, 512, 4096, 16384};
constexpr DensePeers kDensePeers[] = {
    {512, 5120, {6.1, 6.1, 6.1, 6.4, 6.8, 18, 64}},
    {1280, 5120, {6.7, 6.2, 6.5, 7.3, 9.2, 40, 153}},
    {4608, 5120, {9.7, 8.5, 9.2, 12.8, 19.2, 135, 537}},
    {5120, 2304, {5.8, 5.8, 6.4, 8.2, 12.1, 73, 281}},
    {5120, 8192, {13.2, 13.0, 14.4, 20.2, 32.2, 247, 961}},
    {32768, 1280, {12.8, 12.5, 14.0, 22.8, 38.3, 268, 1056}},
};

KernelTime timed(const KernelFloors& floors, double us, double bytes, double operations) {
  KernelTime time;
  time.us = us;
  time.operations = operations;
  const double bytes_us = 1e6 * bytes / floors.bytes_per_s;
  const double operations_us = 1e6 * operations / floors.fp8_operations_per_s;
  time.bytes_bound = bytes_us >= operations_us;
  time.floor_us = std::max(bytes_us, operations_us);
  return time;
}

Result<void> bench_expert_case(const KernelFloors& floors, const ExpertPeers& peers, size_t index,
                               const BenchBuffer& tiles, int64_t copies, const float* row_scale,
                               const ReportKernel& report) {
  const ExpertCase& point = kExpertCases[index];
  const int64_t outputs = peers.down ? kHidden : 2 * kInner;
  const int64_t inputs = peers.down ? kInner : kHidden;
  const int64_t chunks = tiled_chunks(inputs);
  const std::vector<int32_t> counts = spread_rows(peers.experts, point.rows, point.skewed);
  std::vector<int32_t> experts;
  for (int32_t e = 0; e < peers.experts; ++e) {
    experts.insert(experts.end(), static_cast<size_t>(counts[static_cast<size_t>(e)]), e);
  }
  const int32_t tokens = expert_block_tokens(point.rows, peers.experts);
  const int64_t places = plan_places(point.rows, peers.experts);
  const BenchBuffer ids = TRY(BenchBuffer::create(point.rows * 4));
  const BenchBuffer weights = TRY(BenchBuffer::create(point.rows * 4));
  const BenchBuffer place = TRY(BenchBuffer::create(point.rows * 4));
  const BenchBuffer row_weight = TRY(BenchBuffer::create((places + 256) * 4));
  const BenchBuffer totals = TRY(BenchBuffer::create(sizeof(PlanTotals)));
  const BenchBuffer blocks =
      TRY(BenchBuffer::create(plan_blocks(point.rows, peers.experts, 8) * 16));
  const BenchBuffer x = TRY(BenchBuffer::create(point.rows * inputs * 2));
  const BenchBuffer x8 = TRY(BenchBuffer::create(places * chunks * kChunk));
  const BenchBuffer x_scale = TRY(BenchBuffer::create(places * chunks * 4));
  const BenchBuffer y = TRY(BenchBuffer::create(places * outputs * 2));
  cudaMemcpy(ids.as<int32_t>(), experts.data(), experts.size() * 4, cudaMemcpyHostToDevice);
  fill_f32<<<256, 256>>>(weights.as<float>(), point.rows, 0.25F);
  fill_bf16<<<1024, 256>>>(x.as<Bf16>(), point.rows * inputs, 3);
  ExpertPlan plan;
  plan.place = place.as<int32_t>();
  plan.row_weight = row_weight.as<float>();
  plan.totals = totals.as<PlanTotals>();
  plan.blocks = blocks.as<TokenBlock>();
  plan_experts(nullptr, ids.as<int32_t>(), weights.as<float>(), point.rows, peers.experts, tokens,
               plan);
  quantise_choices(nullptr, Rows<const Bf16>(x.as<Bf16>(), point.rows, inputs), plan.place, 1,
                   {x8.as<uint8_t>(), x_scale.as<float>(), places});
  ProductArguments args{};
  args.expert_bytes = tiles.bytes() / copies / peers.experts;
  args.row_scale = row_scale;
  args.x = x8.as<uint8_t>();
  args.x_scale = x_scale.as<float>();
  args.x_rows = places;
  args.experts = peers.experts;
  args.blocks = plan.blocks;
  args.totals = plan.totals;
  args.chunks = static_cast<int32_t>(chunks);
  args.groups = 1;
  args.slots = static_cast<int32_t>(outputs);
  args.outputs = static_cast<int32_t>(peers.down ? outputs : outputs / 2);
  args.y = y.as<uint8_t>();
  args.y_stride = args.outputs;
  args.row_weight = plan.row_weight;
  args.limit = 10.0F;
  args.planned_early = peers.down;  // gate and up come between, in a layer
  const double us =
      TRY(graph_time_us(point.rows > 50000 ? 2 : 10, 9, [&](int i, cudaStream_t stream) {
        args.weights = tiles.as<uint8_t>() + i % copies * (tiles.bytes() / copies);
        expert_product(stream, peers.down ? ResultForm::kBf16 : ResultForm::kSwiGlu, tokens, args);
      }));
  const auto active = static_cast<double>(
      std::count_if(counts.begin(), counts.end(), [](int32_t count) { return count > 0; }));
  const double cells = static_cast<double>(outputs) * static_cast<double>(inputs);
  KernelTime time =
      timed(floors, us, active * cells / 2, 2.0 * static_cast<double>(point.rows) * cells);
  time.name = peers.down ? "experts_down" : "experts_gate_up";
  time.shape = std::to_string(outputs) + "x" + std::to_string(inputs) + ", " +
               std::to_string(peers.experts) +
               (point.skewed ? " experts, skewed" : " experts, even");
  time.rows = point.rows;
  time.peer_us = peers.us[index];
  time.peer = "DeepGEMM, fp8 weights";
  report(time);
  return {};
}

}  // namespace

Result<KernelFloors> measure_kernel_floors() {
  KernelFloors floors;
  const int64_t bytes = int64_t{2300} << 20;
  const BenchBuffer memory = TRY(BenchBuffer::create(bytes));
  const BenchBuffer out = TRY(BenchBuffer::create(256));
  fill_bf16<<<1024, 256>>>(memory.as<Bf16>(), bytes / 2, 1);
  const double read_us = TRY(graph_time_us(2, 9, [&](int, cudaStream_t stream) {
    read_kernel<<<264, 1024, 0, stream>>>(memory.as<uint4>(), bytes / 16, out.as<uint32_t>());
  }));
  floors.bytes_per_s = 1e6 * static_cast<double>(bytes) / read_us;
  constexpr int32_t kRounds = 1000;
  constexpr int32_t kShared = kPeakTokens * kChunk + 1024;
  int32_t device = 0;
  int32_t multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const double peak_us = TRY(graph_time_us(1, 9, [&](int, cudaStream_t stream) {
    wgmma_peak_kernel<<<multiprocessors, kPeakThreads, kShared, stream>>>(kRounds, out.as<float>());
  }));
  const double operations =
      2.0 * (kPeakThreads / 2) * kPeakTokens * 32 * kPeakProducts * kRounds * multiprocessors;
  floors.fp8_operations_per_s = 1e6 * operations / peak_us;
  return floors;
}

Result<void> bench_experts(const KernelFloors& floors, BenchRows which, bool quick,
                           const ReportKernel& report) {
  for (const ExpertPeers& peers : kExpertPeers) {
    if (quick && peers.experts > 100) continue;
    const FoldShape shape = peers.down ? FoldShape{.rows = kHidden, .in = kInner, .paired = false}
                                       : FoldShape{.rows = kInner, .in = kHidden, .paired = true};
    const int64_t layer = peers.experts * folded_fp4_bytes(shape);
    const int64_t copies = std::max<int64_t>(1, (kRotatedBytes + layer - 1) / layer);
    const BenchBuffer tiles = TRY(BenchBuffer::create(copies * layer));
    const BenchBuffer scale = TRY(BenchBuffer::create(peers.experts * shape.slots() * 4));
    fill_fp4_tiles<<<2048, 256>>>(tiles.as<uint32_t>(), tiles.bytes() / 4, 1);
    fill_f32<<<1024, 256>>>(scale.as<float>(), peers.experts * shape.slots(), 1.0F / 1024.0F);
    for (size_t index = 0; index < std::size(kExpertCases); ++index) {
      if (!among(which, kExpertCases[index].rows)) continue;
      TRY(bench_expert_case(floors, peers, index, tiles, copies, scale.as<float>(), report));
    }
  }
  return {};
}

Result<void> bench_dense(const KernelFloors& floors, BenchRows which, const ReportKernel& report) {
  for (const DensePeers& peers : kDensePeers) {
    const FoldShape shape{.rows = peers.outputs, .in = peers.inputs, .paired = false};
    const int64_t matrix = folded_fp8_bytes(shape);
    const int64_t copies = (kRotatedBytes + matrix - 1) / matrix;
    const BenchBuffer tiles = TRY(BenchBuffer::create(copies * matrix));
    fill_fp8_tiles<<<2048, 256>>>(tiles.as<uint32_t>(), tiles.bytes() / 4, 1);
    for (size_t index = 0; index < std::size(kDenseRows); ++index) {
      const int64_t rows = kDenseRows[index];
      if (!among(which, rows)) continue;
      const int64_t places = (rows + 7) / 8 * 8;
      const BenchBuffer x = TRY(BenchBuffer::create(rows * peers.inputs * 2));
      const BenchBuffer x8 = TRY(BenchBuffer::create(places * shape.chunks() * kChunk));
      const BenchBuffer x_scale = TRY(BenchBuffer::create(places * shape.chunks() * 4));
      const BenchBuffer y = TRY(BenchBuffer::create(rows * peers.outputs * 2));
      fill_bf16<<<1024, 256>>>(x.as<Bf16>(), rows * peers.inputs, 3);
      quantise_rows(nullptr, Rows<const Bf16>(x.as<Bf16>(), rows, peers.inputs), places,
                    x8.as<uint8_t>(), x_scale.as<float>());
      ProductArguments args{};
      args.x = x8.as<uint8_t>();
      args.x_scale = x_scale.as<float>();
      args.x_rows = places;
      args.rows = static_cast<int32_t>(rows);
      args.chunks = static_cast<int32_t>(shape.chunks());
      args.slots = static_cast<int32_t>(shape.slots());
      args.outputs = static_cast<int32_t>(peers.outputs);
      args.y = y.as<uint8_t>();
      args.y_stride = peers.outputs;
      const double us =
          TRY(graph_time_us(rows >= 4096 ? 4 : 24, 9, [&](int i, cudaStream_t stream) {
            args.weights = tiles.as<uint8_t>() + i % copies * matrix;
            dense_product(stream, ResultForm::kBf16, args);
          }));
      const double cells = static_cast<double>(peers.outputs) * static_cast<double>(peers.inputs);
      const double moved =
          cells + static_cast<double>(rows) * static_cast<double>(peers.inputs + 2 * peers.outputs);
      KernelTime time = timed(floors, us, moved, 2.0 * static_cast<double>(rows) * cells);
      time.name = "dense_fp8";
      time.shape = std::to_string(peers.outputs) + "x" + std::to_string(peers.inputs);
      time.rows = rows;
      time.peer_us = peers.us[index];
      time.peer = "DeepGEMM or cuBLASLt, fp8";
      report(time);
    }
  }
  return {};
}

}  // namespace galley::kernels::cuda
