// galley bench: times against floors measured in the same run.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/bandwidth.h"
#include "tools/bench_case.h"
#include "tools/exit_code.h"
#include "tools/interrupt.h"
#include "tools/model_settings.h"
#include "tools/progress.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  std::string shape = "all";
  float expert_gib = 8.0F;
  float bandwidth_gib = 6.0F;
  int32_t samples = 15;
  ModelSettings model;
  DeviceStepOptions device;
};

std::string machine_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

Result<Floors> measure_floors(Backend& backend, double gib) {
  Floors floors;
  std::fprintf(stderr, "galley bench: measuring read bandwidth over %.1f GiB and the dot peak\n",
               gib);
  floors.bytes_per_s =
      TRY(kernels::read_bandwidth(*backend.pool, static_cast<int64_t>(gib * (1 << 30))));
  for (const kernels::Isa isa : {kernels::Isa::kAvx512Bf16, kernels::Isa::kAvx2}) {
    const std::string name = "fast-" + std::string(kernels::isa_name(isa));
    if (backend.ops->name() == name)
      floors.operations_per_s = kernels::dot_peak(*backend.pool, isa);
  }
  return floors;
}

void print_case(const BenchCase& bench, const Floors& floors, const std::string& backend,
                const std::string& machine) {
  const double bytes_s = floors.bytes_per_s > 0 ? bench.bytes / floors.bytes_per_s : 0.0;
  const double operations_s =
      floors.operations_per_s > 0 ? bench.operations / floors.operations_per_s : 0.0;
  Json json;
  json["case"] = bench.name;
  json["shape"] = bench.shape;
  json["rows"] = bench.rows;
  json["sequences"] = bench.sequences;
  json["context"] = bench.context;
  json["median_ms"] = rounded(1e3 * bench.median_s, 5);
  json["samples"] = bench.samples;
  json["rows_per_s"] = rounded(bench.rows_per_s(), 5);
  // Floors are the host's: a device's are those of `galley bench kernels`.
  if (bench.operations > 0 && floors.bytes_per_s > 0) {
    json["floor_ms"] = rounded(1e3 * std::max(bytes_s, operations_s), 5);
    json["floor"] = bytes_s >= operations_s ? "bytes" : "operations";
    json["ratio"] = rounded(bench.median_s / std::max(bytes_s, operations_s), 5);
    json["share_of_bandwidth"] = rounded(bytes_s / bench.median_s, 5);
    json["share_of_dot_peak"] = rounded(operations_s / bench.median_s, 5);
    json["operations"] = rounded(bench.operations, 5);
    json["read_bytes_per_s"] = rounded(floors.bytes_per_s, 5);
    json["dot_operations_per_s"] = rounded(floors.operations_per_s, 5);
  }
  if (bench.bytes > 0) json["bytes"] = rounded(bench.bytes, 5);
  json["bar"] = bench.bar;
  json["met"] = bench.met;
  json["threads"] = bench.threads;
  json["backend"] = backend;
  json["machine"] = machine;
  std::puts(json.dump().c_str());
  std::fflush(stdout);
}

Result<void> run(const BenchOptions& options) {
  Backend backend = TRY(make_backend(options.model.backend, options.model.threads));
  const bool on_host = backend.ops->memory().is_host();
  if (!on_host && options.device.part == "ep2") return bench_device_pair(backend, options.device);
  if (!on_host && options.shape != "model") {
    TRY(bench_device_steps(backend, options.device));
    if (options.shape == "released") return {};
  }
  Floors floors;
  if (on_host) {
    floors = TRY(measure_floors(backend, static_cast<double>(options.bandwidth_gib)));
  }
  const std::string machine = machine_name();
  const std::string name(backend.ops->name());
  const auto report = [&](BenchCase bench) {
    const double bytes_share = bench.bytes / floors.bytes_per_s / bench.median_s;
    if (bench.name == "released_decode_1") bench.met = bytes_share >= 0.7;
    if (bench.name == "released_decode_8") bench.met = bytes_share >= 1 / 1.3;
    if (bench.name == "released_prefill_512") {
      bench.met = bench.operations / bench.median_s >= 0.5 * floors.operations_per_s;
    }
    print_case(bench, floors, name, machine);
  };
  if (on_host && options.shape != "model") {
    ReleasedOptions released;
    released.threads = options.model.threads;
    released.samples = options.samples;
    released.expert_bytes_max =
        static_cast<int64_t>(static_cast<double>(options.expert_gib) * (1 << 30));
    TRY(bench_released(backend, floors, released, report));
  }
  if (options.shape == "released") return {};
  ModelBenchOptions model;
  model.directory = TRY(find_model(options.model.model));
  model.backend = options.model.backend;
  const int32_t threads = backend.pool->thread_count();
  if (threads > 1) model.threads.push_back(1);
  model.threads.push_back(threads);
  model.samples = std::max(1, options.samples / 3);
  backend.ops.reset();
  backend.pool.reset();  // its threads must not wake beside those of the cases
  return bench_model(floors, model, report);
}

}  // namespace

int run_bench(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "serve") return run_bench_serve(argc - 1, argv + 1);
  if (argc > 1 && std::string_view(argv[1]) == "kernels") {
    return run_bench_kernels(argc - 1, argv + 1);
  }
  if (argc > 1 && std::string_view(argv[1]) == "reuse") return run_bench_reuse(argc - 1, argv + 1);
  BenchOptions options;
  Command command(
      "bench", "Times steps against floors that the same run measures; one JSON line a case.",
      "  galley bench\n"
      "  galley bench --shape released --expert-gib 2\n"
      "  galley bench --shape model -m models/nano | jq .rows_per_s\n"
      "  galley bench --shape released --backend cuda --part rank\n"
      "  galley bench serve --help                          load on a running server\n"
      "  galley bench kernels --help                        kernels of a card\n"
      "  galley bench reuse --help                          prefix hits, snapshots, preemption\n"
      "\nA floor is the larger of bytes over read bandwidth and operations over the peak of the\n"
      "dot product; ratio is time over floor. The released shape needs about 9 GiB of memory.\n"
      "On a card it is whole steps of all 40 layers, one layer of each role aliased (20 GB of\n"
      "host memory, 60 of the card's): prefill in steps of 16k tokens, decode as one rank of 64,\n"
      "whose exchange with the others is arithmetic, and decode of 1 to 8 sequences. ep2 is\n"
      "prefill by two ranks that share the experts, on two cards (or both on one), against the\n"
      "same cards with all experts and the same rows.\n"
      "\nExit codes: 0 measured (whatever the result), 1 failed, 64 wrong usage, 130 "
      "interrupted.\n");
  command.setting("--shape", options.shape, "What to measure: released, model or all")
      .choices({"all", "released", "model"})
      .value_name("WHICH");
  command.setting("--expert-gib", options.expert_gib, "Random experts of the released shape, GiB")
      .range(0.3, 512)
      .value_name("GIB");
  command.setting("--bandwidth-gib", options.bandwidth_gib, "Buffer that bandwidth is read from")
      .range(0.01, 512)
      .value_name("GIB");
  command.setting("--samples", options.samples, "Times a decode step is measured; others a third")
      .range(1, 10000)
      .value_name("N");
  command.setting("--part", options.device.part, "Of the released shape on a card; ep2: two ranks")
      .choices({"all", "prefill", "small", "rank", "ep2"})
      .value_name("WHICH");
  command.setting("--quick", options.device.quick, "On a card: fewer samples");
  command
      .setting("--accepted", options.device.accepted,
               "Tokens that a verify step of six rows is taken to give")
      .range(1, 6)
      .value_name("N");
  add_model_settings(command, options.model);
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  listen_for_interrupt();
  const Result<void> done = run(options);
  return done ? kExitOk : command.fail(done.error());
}

}  // namespace galley::tools
