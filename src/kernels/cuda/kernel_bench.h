// Times of the SM90 kernels at the released shapes, each beside a floor of the same run and the
// best peer that was measured on such a card.
//
// Inputs are random and rotate past the L2; a time is the median of replays of a graph of calls.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace galley::kernels::cuda {

struct KernelFloors {
  double bytes_per_s = 0;           // reading far more than the L2 holds
  double fp8_operations_per_s = 0;  // wgmma on operands that lie in shared memory
};

struct KernelTime {
  std::string name;   // "experts_gate_up"
  std::string shape;  // "4608x5120, 52 experts, even"
  int64_t rows = 0;
  double us = 0;
  double floor_us = 0;
  bool bytes_bound = false;  // which floor it is
  double operations = 0;
  double peer_us = 0;  // 0: none measured
  const char* peer = "";
};

using ReportKernel = std::function<void(const KernelTime&)>;

Result<KernelFloors> measure_kernel_floors();

// Cases below 4,096 rows, or from there on. Those draw the card's whole power, and for a second or
// two behind them what is bound by latency takes up to 1.3 times as long, at the SM's full clock:
// few rows of every kernel are timed before many rows of any.
enum class BenchRows { kFew, kMany };
inline bool among(BenchRows which, int64_t rows) {
  constexpr int64_t kMany = 4096;
  return (rows >= kMany) == (which == BenchRows::kMany);
}

// Routed experts, fp8 x fp4. `quick` leaves out the cases of 384 experts (5 GB).
Result<void> bench_experts(const KernelFloors& floors, BenchRows which, bool quick,
                           const ReportKernel& report);
Result<void> bench_dense(const KernelFloors& floors, BenchRows which, const ReportKernel& report);
// Sparse attention: 64 heads x 512, packed keys (attention_sm90.h).
Result<void> bench_attention(const KernelFloors& floors, BenchRows which,
                             const ReportKernel& report);
// Scores, selection and candidate pool of the indexer (index_select_sm90.h).
Result<void> bench_indexer(const KernelFloors& floors, BenchRows which, const ReportKernel& report);

}  // namespace galley::kernels::cuda
