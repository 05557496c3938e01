// The indexer at the released shape: scores, selection and candidate pool, all in.
// Peers: docs/benchmarks.md says which and how they were measured; they compute scores alone.
#include <random>

#include "kernels/cuda/bench_device.cuh"
#include "kernels/cuda/bench_records.cuh"
#include "kernels/cuda/index_select_sm90.h"
#include "kernels/cuda/kernel_bench.h"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kHeads = 32;
constexpr int32_t kTopK = 512;
constexpr int32_t kPoolBlocks = 2048;
constexpr int32_t kRecordsPerPage = 128;
constexpr int64_t kRecords = 8 << 20;
constexpr int64_t kRowsMax = 4096;
constexpr int64_t kScratchBytes = 600'000'000;

struct IndexBenchCase {
  int32_t sequences;
  int32_t rows;  // of each
  int64_t keys;
  bool builds_pool;
  bool from_pool;
  double peer_us;
};
constexpr IndexBenchCase kCases[] = {
    {1, 1, 65'536, false, false, 245},      {1, 4, 65'536, false, false, 244},
    {1, 16, 65'536, false, false, 261},     {1, 64, 65'536, false, false, 263},
    {1, 1, 65'536, true, false, 0},         {1, 1, 65'536, false, true, 0},
    {8, 1, 65'536, false, false, 21},       {64, 1, 65'536, false, false, 141},
    {64, 2, 65'536, false, false, 146},     {64, 1, 65'536, true, false, 0},
    {64, 1, 65'536, false, true, 0},        {1, 1, 1'048'576, false, false, 3822},
    {1, 64, 1'048'576, false, false, 4107}, {1, 1, 1'048'576, true, false, 0},
    {8, 1, 1'048'576, false, false, 278},   {1, 4096, 65'536, false, false, 2429},
};

struct Inputs {
  BenchBuffer keys;
  BenchBuffer table;
  BenchBuffer queries;
  BenchBuffer head_weights;
  BenchBuffer selected;
  BenchBuffer counts;
  BenchBuffer built;
  BenchBuffer pool;  // every so many blocks of 65,536 entries, then their number
  BenchBuffer scratch;
};

__global__ void fill_index_queries(Bf16* data, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  constexpr float kValues[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const uint32_t random = bench_hash(static_cast<uint64_t>(i), 3);
    const float value = kValues[random & 7] * ((random & 8) != 0 ? -1.0F : 1.0F);
    data[i].bits = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  }
}

Result<Inputs> make_inputs(std::mt19937& random) {
  Inputs in;
  in.keys = TRY(BenchBuffer::create(kRecords * index_record_bytes(kIndexWidth)));
  in.queries = TRY(BenchBuffer::create(kRowsMax * kHeads * kIndexWidth * 2));
  in.head_weights = TRY(BenchBuffer::create(kRowsMax * kHeads * 2));
  in.selected = TRY(BenchBuffer::create(kRowsMax * kTopK * 4));
  in.counts = TRY(BenchBuffer::create(kRowsMax * 2 * 4));
  in.built = TRY(BenchBuffer::create(kRowsMax * kPoolBlocks * 4));
  in.scratch = TRY(BenchBuffer::create(kScratchBytes));
  fill_records<<<1024, 256>>>(in.keys.as<uint8_t>(), in.keys.bytes(),
                              RecordCodes{index_record_bytes(kIndexWidth), 64, 126, 1, 0xFF});
  fill_index_queries<<<1024, 256>>>(in.queries.as<Bf16>(), in.queries.bytes() / 2);
  fill_queries<<<1024, 256>>>(in.head_weights.as<Bf16>(), in.head_weights.bytes() / 2);
  cudaMemset(in.scratch.as<void>(), 0, static_cast<size_t>(kScratchBytes));
  const std::vector<int32_t> table = shuffled_pages(kRecords / kRecordsPerPage, random);
  in.table = TRY(uploaded(table.data(), table.size() * 4));
  std::vector<int32_t> pool;
  for (int32_t i = 0; i < kPoolBlocks; ++i) pool.push_back(i * 4 + 3);
  pool.push_back(kPoolBlocks);
  in.pool = TRY(uploaded(pool.data(), pool.size() * 4));
  TRY(check_cuda(cudaDeviceSynchronize(), "the indexer's inputs"));
  return Result<Inputs>(std::move(in));
}

// Descriptors of one call; `set` moves the keys.
Result<BenchBuffer> make_rows(const IndexBenchCase& c, const Inputs& in, int64_t set) {
  std::vector<IndexRow> rows;
  const int64_t pages = c.keys / kRecordsPerPage;
  const int64_t places = kRecords / kRecordsPerPage - pages + 1;
  for (int32_t i = 0; i < c.sequences * c.rows; ++i) {
    IndexRow row;
    row.visible = c.keys;
    row.keys = {in.keys.as<uint8_t>(), kRecordsPerPage * index_record_bytes(kIndexWidth),
                in.table.as<int32_t>() + (set * c.sequences + i / c.rows) * pages % places,
                kRecordsPerPage, static_cast<int32_t>(index_record_bytes(kIndexWidth))};
    row.selected = in.selected.as<int32_t>() + int64_t{i} * kTopK;
    row.selected_count = in.counts.as<int32_t>() + int64_t{i} * 2;
    if (c.builds_pool) {
      row.built_pool = in.built.as<int32_t>() + int64_t{i} * kPoolBlocks;
      row.built_pool_count = row.selected_count + 1;
    }
    if (c.from_pool) {
      row.pool = in.pool.as<int32_t>();
      row.pool_count = row.pool + kPoolBlocks;
    }
    rows.push_back(row);
  }
  return uploaded(rows.data(), rows.size() * sizeof(IndexRow));
}

}  // namespace

Result<void> bench_indexer(const KernelFloors& floors, BenchRows which,
                           const ReportKernel& report) {
  const DeviceProperties device = TRY(open_device(0));
  std::mt19937 random(1);
  const Inputs in = TRY(make_inputs(random));
  for (const IndexBenchCase& c : kCases) {
    const int64_t rows = int64_t{c.sequences} * c.rows;
    if (!among(which, rows)) continue;
    const int64_t sets =
        rows > 1024 ? 1 : std::clamp<int64_t>(kRecords / (c.keys * c.sequences), 1, 24);
    std::vector<BenchBuffer> row_sets;
    for (int64_t i = 0; i < sets; ++i) row_sets.push_back(TRY(make_rows(c, in, i)));
    const int64_t entries = c.from_pool ? int64_t{kPoolBlocks} * kIndexPoolBlock : c.keys;
    KernelTime time;
    time.us = TRY(graph_time_us(
        static_cast<int>(std::max<int64_t>(2, sets)), 9, [&](int i, cudaStream_t stream) {
          IndexCall call;
          call.queries = in.queries.as<Bf16>();
          call.query_stride = kHeads * kIndexWidth;
          call.head_weights = in.head_weights.as<Bf16>();
          call.weight_stride = kHeads;
          call.shape = {kHeads, kIndexWidth, kTopK, kPoolBlocks, kIndexPoolBlock};
          call.rows = row_sets[static_cast<size_t>(i % sets)].as<IndexRow>();
          call.row_count = static_cast<int32_t>(rows);
          call.entries_max = entries;
          call.builds_pool = c.builds_pool;
          call.scratch = in.scratch.as<void>();
          call.scratch_bytes = static_cast<size_t>(kScratchBytes);
          index_select_sm90(call, device.multiprocessors, stream);
        }));
    const auto scored = static_cast<double>(entries);
    time.operations = 2.0 * kHeads * kIndexWidth * scored * static_cast<double>(rows);
    const double bytes = scored * c.sequences * index_record_bytes(kIndexWidth);
    const double bytes_us = 1e6 * bytes / floors.bytes_per_s;
    const double operations_us = 1e6 * time.operations / floors.fp8_operations_per_s;
    time.name = c.builds_pool ? "indexer_builds_pool"
                : c.from_pool ? "indexer_from_pool"
                              : "indexer";
    time.shape = "32x128, " + std::to_string(c.sequences) + " sequences of " +
                 std::to_string(c.keys) + " keys";
    time.rows = rows;
    time.bytes_bound = bytes_us > operations_us;
    time.floor_us = std::max(bytes_us, operations_us);
    time.peer_us = c.peer_us;
    time.peer = "DeepGEMM, scores alone";
    report(time);
  }
  return {};
}

}  // namespace galley::kernels::cuda
