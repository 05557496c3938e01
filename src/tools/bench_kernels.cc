// galley bench kernels: the SM90 kernels at the released shapes, one JSON line each.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/cuda/device.h"
#include "kernels/cuda/kernel_bench.h"
#include "tools/bench_case.h"
#include "tools/command.h"
#include "tools/exit_code.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

namespace cuda = kernels::cuda;

struct KernelBenchOptions {
  std::string backend = "cuda";
  std::string part = "all";
  int32_t device = 0;
  bool quick = false;
};

void print(const cuda::KernelTime& time, const cuda::KernelFloors& floors,
           const std::string& device) {
  nlohmann::ordered_json json;
  json["kernel"] = time.name;
  json["shape"] = time.shape;
  json["rows"] = time.rows;
  json["us"] = rounded(time.us);
  json["floor_us"] = rounded(time.floor_us);
  json["floor"] = time.bytes_bound ? "bytes" : "operations";
  json["share_of_floor"] = rounded(time.floor_us / time.us);
  json["tflops"] = rounded(1e-6 * time.operations / time.us);
  if (time.peer_us > 0) {
    json["peer"] = time.peer;
    json["peer_us"] = rounded(time.peer_us);
    json["times_peer"] = rounded(time.peer_us / time.us);
  }
  json["read_bytes_per_s"] = rounded(floors.bytes_per_s);
  json["fp8_operations_per_s"] = rounded(floors.fp8_operations_per_s);
  json["device"] = device;
  std::puts(json.dump().c_str());
  std::fflush(stdout);
}

Result<void> run(const KernelBenchOptions& options) {
  const cuda::DeviceProperties device = TRY(cuda::open_device(options.device));
  std::fprintf(stderr, "galley bench: measuring the floors of %s\n", device.name.c_str());
  const cuda::KernelFloors floors = TRY(cuda::measure_kernel_floors());
  const auto report = [&](const cuda::KernelTime& time) { print(time, floors, device.name); };
  const auto wanted = [&](const char* part) {
    return options.part == "all" || options.part == part;
  };
  for (const cuda::BenchRows which : {cuda::BenchRows::kFew, cuda::BenchRows::kMany}) {
    if (wanted("attention")) TRY(cuda::bench_attention(floors, which, report));
    if (wanted("indexer")) TRY(cuda::bench_indexer(floors, which, report));
    if (wanted("dense")) TRY(cuda::bench_dense(floors, which, report));
    if (wanted("experts")) TRY(cuda::bench_experts(floors, which, options.quick, report));
  }
  return {};
}

}  // namespace

int run_bench_kernels(int argc, char** argv) {
  KernelBenchOptions options;
  Command command(
      "bench kernels",
      "Times the kernels of a device at the released shapes against floors of the same "
      "run; one JSON line a kernel.",
      "  galley bench kernels --backend cuda\n"
      "  galley bench kernels --part dense | jq -c '[.shape, .rows, .us]'\n"
      "\nInputs are random and rotate past the L2; a time is the median of replays of a "
      "graph. Few rows\ncome first, since many rows leave a hot card behind. The floor is the "
      "larger of bytes over read\nbandwidth (fp4 codes alone, without scales) and operations over "
      "the peak of wgmma (for attention\nhalf of it: bf16). Peers were measured apart, on such a "
      "card.\n"
      "\nExit codes: 0 measured (whatever the result), 1 failed, 64 wrong usage.\n");
  command.setting("--backend", options.backend, "Whose kernels: cuda").choices({"cuda"});
  command
      .setting("--part", options.part, "What to measure: experts, dense, attention, indexer or all")
      .choices({"all", "experts", "dense", "attention", "indexer"})
      .value_name("WHICH");
  command.setting("--device", options.device, "Which card").range(0, 63).value_name("N");
  command.setting("--quick", options.quick, "Leave out 384 experts, which take 5 GB");
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  const Result<void> done = run(options);
  return done ? kExitOk : command.fail(done.error());
}

}  // namespace galley::tools
