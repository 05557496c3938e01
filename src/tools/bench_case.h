// What `galley bench` measures and reports: one case, its time, its floor.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tools/backend.h"
#include "tools/exchange_cost.h"

namespace galley::tools {

// Measured in the same run, on the same threads as the cases.
struct Floors {
  double bytes_per_s = 0;       // reading a buffer far beyond the caches
  double operations_per_s = 0;  // of the dot product, operands in registers; 0: plain kernels
};

struct BenchCase {
  std::string name;
  std::string shape;
  int64_t rows = 0;  // token positions of one measured step, all sequences together
  int64_t sequences = 1;
  int64_t context = 0;
  int32_t threads = 0;
  int32_t samples = 0;
  double median_s = 0;
  double bytes = 0;       // that must be read at least once
  double operations = 0;  // useful ones, multiply and add apart
  std::string bar;        // what docs/benchmarks.md holds it against
  bool met = false;

  double rows_per_s() const { return static_cast<double>(rows) / median_s; }
};

using ReportCase = std::function<void(const BenchCase&)>;

// The middle one; of an even number the upper of the two.
double median(std::vector<double> values);
// To so many digits: more would only be noise.
double rounded(double value, int digits = 4);
// Seconds of each call; the median of `samples`, after `warm_ups` that do not count.
double median_seconds(int warm_ups, int samples, const std::function<double()>& measure);

struct ReleasedOptions {
  int32_t threads = 0;
  int64_t expert_bytes_max = int64_t{8} << 30;
  int64_t context = 4096;
  int32_t samples = 15;
};
Result<void> bench_released(Backend& backend, const Floors& floors, const ReleasedOptions& options,
                            const ReportCase& report);

// Whole steps of the released shape on a card; JSON lines of its own.
struct DeviceStepOptions {
  std::string part = "all";  // or prefill, small, rank, ep2 (not of all)
  bool quick = false;        // fewer samples
  float accepted = 3.4F;  // tokens that a verify step of six rows gives; no model is there to tell
  ExchangeRates rates;

  bool wants(std::string_view one) const { return part == "all" || part == one; }
};
Result<void> bench_device_steps(Backend& backend, const DeviceStepOptions& options);
// Part ep2: two cards against one. Takes the backend's kernels.
Result<void> bench_device_pair(Backend& backend, const DeviceStepOptions& options);

struct ModelBenchOptions {
  std::string directory;
  std::string backend;
  std::vector<int32_t> threads;
  int32_t samples = 5;
};
Result<void> bench_model(const Floors& floors, const ModelBenchOptions& options,
                         const ReportCase& report);

}  // namespace galley::tools
