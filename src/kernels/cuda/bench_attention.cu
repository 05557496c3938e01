// Sparse attention at the released shape: decode rows of as many sequences, and a prefill step.
// Peers: docs/benchmarks.md says which and how they were measured.
#include <random>

#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/bench_device.cuh"
#include "kernels/cuda/bench_records.cuh"
#include "kernels/cuda/kernel_bench.h"

namespace galley::kernels::cuda {
namespace {

constexpr int64_t kRowChannels = int64_t{kAttentionHeads} * kAttentionWidth;
constexpr int32_t kRingSlots = kAttentionWindowMax + 5;
constexpr int32_t kRecordsPerPage = 128;

struct AttentionBenchCase {
  int64_t rows;
  int64_t entries;  // to choose from
  int32_t selected;
  bool prefill;  // neighbouring rows share their windows
  double peer_us;
};
constexpr AttentionBenchCase kCases[] = {
    {1, 2'097'152, 512, false, 12.1},   {8, 2'097'152, 512, false, 14.9},
    {64, 2'097'152, 512, false, 43.7},  {128, 2'097'152, 512, false, 45.1},
    {256, 2'097'152, 512, false, 87.2}, {512, 2'097'152, 512, false, 171.9},
    {16'384, 65'536, 512, true, 3'080}, {16'384, 1'048'576, 512, true, 3'480},
    {256, 2'097'152, 0, false, 0.0},
};

// What every case reads and writes.
struct Inputs {
  BenchBuffer global;
  BenchBuffer window;
  BenchBuffer q;
  BenchBuffer o;
  BenchBuffer table;
  BenchBuffer angles;  // zeros: cos, sin and sinks
  BenchBuffer room;
};

Result<Inputs> make_inputs(std::mt19937& random) {
  constexpr int64_t kEntries = 2'097'152;
  constexpr int64_t kRowsMax = 16'384;
  constexpr int64_t kWindowRecords = kRowsMax + kAttentionWindowMax + 512 * kRingSlots;
  Inputs in;
  in.global = TRY(BenchBuffer::create(kEntries * global_record_bytes(kAttentionWidth)));
  in.window = TRY(BenchBuffer::create(kWindowRecords * window_record_bytes(kAttentionWidth)));
  in.q = TRY(BenchBuffer::create(kRowsMax * kRowChannels * 2));
  in.o = TRY(BenchBuffer::create(kRowsMax * kRowChannels * 2));
  in.angles = TRY(BenchBuffer::create(kRowsMax * 32 * 4));
  in.room = TRY(BenchBuffer::create(kAttentionRoomRows * kAttentionRoomBytes));
  fill_records<<<1024, 256>>>(
      in.global.as<uint8_t>(), in.global.bytes(),
      RecordCodes{global_record_bytes(kAttentionWidth), 256, 0x28, 15, 0xFF});
  fill_records<<<1024, 256>>>(in.window.as<uint8_t>(), in.window.bytes(),
                              RecordCodes{window_record_bytes(kAttentionWidth), 512, 118, 1, 0xB7});
  fill_queries<<<1024, 256>>>(in.q.as<Bf16>(), in.q.bytes() / 2);
  cudaMemset(in.angles.as<void>(), 0, static_cast<size_t>(in.angles.bytes()));
  const std::vector<int32_t> table = shuffled_pages(kEntries / kRecordsPerPage, random);
  in.table = TRY(uploaded(table.data(), table.size() * 4));
  TRY(check_cuda(cudaDeviceSynchronize(), "attention's inputs"));
  return Result<Inputs>(std::move(in));
}

// The rows of one call and what they point to.
struct RowSet {
  BenchBuffer selected;
  BenchBuffer count;
  BenchBuffer rows;
};

Result<RowSet> make_rows(const AttentionBenchCase& c, const Inputs& in, std::mt19937& random) {
  std::vector<int32_t> selected(static_cast<size_t>(c.rows * std::max(c.selected, 1)));
  for (int64_t r = 0; r < c.rows; ++r) {
    const auto begin = selected.begin() + r * c.selected;
    for (int32_t i = 0; i < c.selected; ++i) {
      begin[i] = static_cast<int32_t>(random() % static_cast<uint64_t>(c.entries));
    }
    std::sort(begin, begin + c.selected);
  }
  RowSet set;
  set.selected = TRY(uploaded(selected.data(), selected.size() * 4));
  set.count = TRY(uploaded(&c.selected, 4));
  std::vector<AttentionRow> rows(static_cast<size_t>(c.rows));
  constexpr int64_t kFirst = 100'000;
  const auto* window = in.window.as<const uint8_t>();
  for (int64_t r = 0; r < c.rows; ++r) {
    AttentionRow& row = rows[static_cast<size_t>(r)];
    row.position = c.prefill ? kFirst + r : kFirst;
    row.window_begin = row.position - kAttentionWindowMax + 1;
    row.ring = window + (16'512 + r % 512 * kRingSlots) * window_record_bytes(kAttentionWidth);
    row.ring_slots = kRingSlots;
    row.chunk_begin = c.prefill ? kFirst - kAttentionWindowMax : kFirst;
    row.chunk = window;
    row.global = {in.global.as<uint8_t>(), kRecordsPerPage * global_record_bytes(kAttentionWidth),
                  in.table.as<int32_t>(), kRecordsPerPage,
                  static_cast<int32_t>(global_record_bytes(kAttentionWidth))};
    row.selected = set.selected.as<int32_t>() + r * c.selected;
    row.selected_count = set.count.as<int32_t>();
  }
  set.rows = TRY(uploaded(rows.data(), rows.size() * sizeof(AttentionRow)));
  return Result<RowSet>(std::move(set));
}

}  // namespace

Result<void> bench_attention(const KernelFloors& floors, BenchRows which,
                             const ReportKernel& report) {
  const DeviceProperties device = TRY(open_device(0));
  std::mt19937 random(1);
  const Inputs in = TRY(make_inputs(random));
  for (const AttentionBenchCase& c : kCases) {
    if (!among(which, c.rows)) continue;
    const int64_t sets = c.prefill ? 1 : std::clamp<int64_t>(2048 / c.rows, 2, 16);
    std::vector<RowSet> row_sets;
    for (int64_t i = 0; i < sets; ++i) row_sets.push_back(TRY(make_rows(c, in, random)));
    KernelTime time;
    time.us = TRY(
        graph_time_us(static_cast<int>(sets), c.prefill ? 7 : 15, [&](int i, cudaStream_t stream) {
          const int64_t at = i % sets * c.rows * kRowChannels;
          AttentionCall call;
          call.q = in.q.as<Bf16>() + at;
          call.q_stride = kRowChannels;
          call.sink = in.angles.as<float>();
          call.cos = in.angles.as<float>();
          call.sin = in.angles.as<float>();
          call.angle_stride = 32;
          call.rotary = 64;
          call.rows = row_sets[static_cast<size_t>(i % sets)].rows.as<AttentionRow>();
          call.row_count = static_cast<int32_t>(c.rows);
          call.o = in.o.as<Bf16>() + at;
          call.o_stride = kRowChannels;
          call.room = in.room.as<uint8_t>();
          attention_sm90(call, device.multiprocessors, stream);
        }));
    const double keys = kAttentionWindowMax + c.selected;
    time.operations = 4.0 * kRowChannels * keys * static_cast<double>(c.rows);
    const double bytes = static_cast<double>(c.rows) *
                         (kAttentionWindowMax * window_record_bytes(kAttentionWidth) +
                          c.selected * global_record_bytes(kAttentionWidth) + 4 * kRowChannels);
    const double bytes_us = 1e6 * bytes / floors.bytes_per_s;
    const double operations_us = 2e6 * time.operations / floors.fp8_operations_per_s;
    time.name = "attention";
    time.shape = std::string(c.prefill ? "prefill" : "decode") + ", 64x512, 128+" +
                 std::to_string(c.selected) + " keys of " + std::to_string(c.entries);
    time.rows = c.rows;
    time.bytes_bound = bytes_us > operations_us;
    time.floor_us = std::max(bytes_us, operations_us);
    time.peer_us = c.peer_us;
    time.peer = "FlashMLA";
    report(time);
  }
  return {};
}

}  // namespace galley::kernels::cuda
