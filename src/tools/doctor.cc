// `galley doctor`: what a model needs, what this machine has, and whether the
// model's files are whole. Reads headers only, so it answers in seconds however
// large the model is.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/machine.h"
#include "kernels/cuda/device.h"
#include "model/checkpoint.h"
#include "model/fleet.h"
#include "model/footprint.h"
#include "model/tokenizer.h"
#include "tools/command.h"
#include "tools/exit_code.h"
#include "tools/model_settings.h"
#include "tools/serve_options.h"
#include "tools/serving_needs.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

using model::Config;
using model::Fit;
using model::Footprint;
using model::Part;

constexpr size_t kProblemsMax = 20;

struct Findings {
  std::string directory;
  Machine machine;
  int64_t disk_free_bytes = 0;
  bool has_config = false;  // else only `problems` mean something
  Config config;
  Footprint size;
  Fit fit;
  size_t shards = 0;
  ServingNeeds serving;
  int64_t serving_available_bytes = 0;  // what the weights leave of the memory
  std::vector<Error> problems;
  std::vector<std::string> warnings;  // the files are whole, but something else is wanting
};

Findings examine(const std::string& directory, const ServeOptions& serve) {
  Findings found;
  found.directory = directory;
  found.machine = this_machine();
  found.disk_free_bytes = disk_free_bytes(directory);
  auto checkpoint = model::Checkpoint::open(directory);
  if (checkpoint) {
    found.has_config = true;
    found.config = checkpoint->config();
    found.shards = checkpoint->shard_count();
  } else {
    found.problems = model::Checkpoint::problems(directory, kProblemsMax);
    const auto text = read_file(directory + "/config.json", size_t{4} << 20);
    if (text) {
      auto config = model::parse_config(*text);
      found.has_config = config.has_value();
      if (config) found.config = *std::move(config);
    }
  }
  if (found.has_config) {
    const auto tokenizer = model::Tokenizer::open(directory);
    if (!tokenizer && tokenizer.error().code == ErrorCode::kNotFound) {
      found.warnings.push_back(directory +
                               ": tokenizer.json is missing: the model cannot run without it");
    } else if (!tokenizer) {
      found.problems.push_back(tokenizer.error());
    }
    found.size = model::footprint(found.config);
    found.fit = model::fit(found.config, found.size, found.machine.available_bytes);
    const auto needs = serving_needs(found.config, serve.engine, serve.connections_max);
    if (!needs) {
      found.warnings.push_back("galley serve: " + needs.error().message);
    } else {
      found.serving = *needs;
    }
    // Weights that do not fit are dropped by the system before the engine's own memory is.
    found.serving_available_bytes = found.machine.available_bytes - found.size.always_bytes -
                                    (found.fit.weights ? found.size.expert_bytes : 0);
  }
  return found;
}

std::string bytes_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", value / 1e9);
  if (bytes >= 1'000'000) return fmt::format("{:.2f} MB", value / 1e6);
  if (bytes >= 10'000) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} B", bytes);
}

std::string count_text(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.2f} B", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.2f} M", value / 1e6);
  return fmt::format("{}", count);
}

std::string instruction_sets(const Machine& machine) {
  if (machine.has_avx512_bf16) return "AVX-512 with bf16 dot products";
  if (machine.has_avx512) return "AVX-512 without bf16 dot products (AVX2 kernels are used)";
  if (machine.has_avx2) return "AVX2";
  return "neither AVX-512 nor AVX2 (plain kernels only: slow)";
}

void print_model(const Findings& found) {
  const Config& c = found.config;
  const Footprint& size = found.size;
  fmt::print("model    {}\n", found.directory);
  fmt::print(
      "         DeepSeek-V4.1: {} layers, hidden {}, {} of {} experts a token, {} heads of {}\n",
      c.layers, c.hidden, c.experts_per_token, c.routed_experts, c.heads, c.head_dim);
  fmt::print("         vocabulary {}, window {}, top {} entries, up to {} positions\n",
             c.vocab_size, c.window, c.index_top_k, c.positions_max);
  fmt::print("         {} Engram layers, {} DSpark stages, {} vision layers\n",
             c.engram.layer_ids.size(), c.dspark.stages, c.vision.layers);
  fmt::print("         {} tensors in {} files, {}; {} parameters, {} active a token\n\n",
             size.tensors, found.shards, bytes_text(size.bytes), count_text(size.parameters),
             count_text(size.active_parameters));
  fmt::print("{:<26}{:>14}{:>14}\n", "part", "parameters", "bytes");
  for (int32_t i = 0; i < model::kPartCount; ++i) {
    const auto part = static_cast<Part>(i);
    if (size.part(part).bytes == 0) continue;
    fmt::print("{:<26}{:>14}{:>14}\n", model::part_name(part),
               count_text(size.part(part).parameters), bytes_text(size.part(part).bytes));
  }
  fmt::print("\n{:<26}{:>14}{:>14}\n", "type", "tensors", "bytes");
  for (const model::DTypeSize& kind : size.dtypes) {
    const std::string_view note = kind.dtype == model::DType::kI8 ? " (packed E2M1)" : "";
    fmt::print("{:<26}{:>14}{:>14}\n", fmt::format("{}{}", dtype_name(kind.dtype), note),
               kind.tensors, bytes_text(kind.bytes));
  }
}

void print_machine(const Findings& found) {
  const Machine& machine = found.machine;
  fmt::print("\nmachine  {}, {} CPUs usable, {}\n",
             machine.cpu_name.empty() ? "unnamed processor" : machine.cpu_name, machine.cpus,
             instruction_sets(machine));
  fmt::print("         memory {}, {} available\n", bytes_text(machine.memory_bytes),
             bytes_text(machine.available_bytes));
  if (found.disk_free_bytes > 0) {
    fmt::print("         disk of the model: {} free\n", bytes_text(found.disk_free_bytes));
  }
  const auto devices = kernels::cuda::list_devices();
  if (!devices) {
    fmt::print("         no GPU: {}\n", devices.error().message);
    return;
  }
  for (const kernels::cuda::DeviceProperties& device : *devices) {
    fmt::print("         GPU {}: {}, compute capability {}.{}, {} multiprocessors, {}{}\n",
               device.index, device.name, device.major, device.minor, device.multiprocessors,
               bytes_text(device.memory_bytes),
               device.is_sm90() ? "" : " (not used: the kernels are for 9.0)");
  }
}

void print_fit(const Findings& found) {
  const Footprint& size = found.size;
  const Fit& fit = found.fit;
  const auto row = [](std::string_view what, int64_t bytes, std::string_view verdict) {
    fmt::print("{:<26}{:>14}   {}\n", what, bytes_text(bytes), verdict);
  };
  fmt::print("\n{:<26}{:>14}   {}\n", "needs", "bytes", "on this machine");
  row("weights of every token", size.always_bytes,
      fit.always ? "fit in memory" : "do not fit: each token reads them from disk, very slow");
  row("routed experts", size.expert_bytes,
      fit.weights ? "fit in memory" : "do not fit: the chosen ones come from disk, slow");
  if (size.table_bytes > 0) {
    row("Engram tables", size.table_bytes,
        fit.tables ? "fit in memory" : "stay on disk, only rows are read");
  }
  if (size.draft_bytes > 0) row("DSpark stages", size.draft_bytes, "only for drafting");
  if (size.vision_bytes > 0) row("vision tower", size.vision_bytes, "only for images");
  row("cache of one token", size.kv_bytes_per_token, "grows with the context");
  row("cache of one sequence", size.kv_bytes_per_sequence, "fixed");
  const int64_t most = found.config.positions_max;
  if (fit.weights) {
    fmt::print(
        "largest context           {:>14}   tokens of one sequence, all weights in memory{}\n",
        fit.context_resident, fit.context_resident == most ? " (the model's limit)" : "");
  } else if (fit.always) {
    fmt::print("largest context           {:>14}   tokens of one sequence, experts on disk{}\n",
               fit.context_paged, fit.context_paged == most ? " (the model's limit)" : "");
  } else {
    fmt::print("largest context           {:>14}   nothing is left beside the weights\n", 0);
  }
}

// Where all its bounds are reached at once, where they are not, or what would help.
std::string serving_verdict(const ServingNeeds& needs, int64_t available) {
  const int64_t sure = needs.kernel_bytes() + needs.snapshot_bytes;
  if (needs.kernel_bytes() + needs.host_bytes() <= available) return "fits beside the weights";
  if (sure <= available) return "fits beside the weights until all bounds are reached at once";
  const int32_t sequences =
      sequences_that_fit(needs, available, needs.workspace_bytes + needs.snapshot_bytes);
  if (sequences > 0) return fmt::format("does not fit; --sequences {} would", sequences);
  return "does not fit; less --context or --snapshot-memory is needed";
}

void print_serving(const Findings& found) {
  const ServingNeeds& needs = found.serving;
  if (needs.sequences == 0) return;
  const auto row = [](std::string_view what, int64_t bytes, const std::string& note) {
    fmt::print("{:<26}{:>14}   {}\n", what, bytes_text(bytes), note);
  };
  fmt::print("\n{:<26}{:>14}   {}\n", "galley serve adds", "bytes", "");
  row("KV pages", needs.page_bytes,
      fmt::format("of {} sequences of {} tokens (--sequences, --context)", needs.sequences,
                  needs.context));
  row("sequence slots", needs.slot_bytes, "windows of those that run");
  row("step workspace", needs.workspace_bytes, "for --rows");
  row("snapshots", needs.snapshot_bytes, "--snapshot-memory");
  row("connections", needs.connection_bytes, "at most, for --max-connections");
  row("bodies of requests", needs.body_bytes, "at most");
  row("files and batches", needs.file_bytes, "at most");
  row("together", needs.kernel_bytes() + needs.host_bytes(),
      serving_verdict(needs, found.serving_available_bytes));
  const auto devices = kernels::cuda::list_devices();
  if (!devices) return;
  for (const kernels::cuda::DeviceProperties& device : *devices) {
    if (!device.is_sm90()) continue;
    const int64_t weights = card_weight_bytes(found.size);
    const bool fits = weights + needs.kernel_bytes() <= device.memory_bytes;
    row(fmt::format("on GPU {}", device.index), weights + needs.kernel_bytes(),
        fmt::format("weights, pages, slots and workspace: {}", fits ? "fit" : "do not fit"));
  }
}

// What the sequences of `serve` would be on cards that may not be here.
model::FleetLoad fleet_load(const Findings& found) {
  return {.context = found.serving.context, .sequences = found.serving.sequences};
}

void print_fleets(const Findings& found) {
  if (found.serving.sequences == 0) return;
  fmt::print(
      "\nsmallest fleets, experts spread over the cards (this version computes on one card)\n");
  for (const model::CardKind& card : model::known_cards()) {
    const model::FleetLoad load = fleet_load(found);
    const auto fleet = model::smallest_fleet(found.config, found.size, card, load);
    fmt::print("  {}\n", fleet
                             ? model::fleet_line(*fleet, load)
                             : fmt::format("{}: no group of up to 256 cards holds it", card.name));
  }
}

void print_problems(const Findings& found) {
  if (found.problems.empty()) {
    fmt::print("\nfiles    whole: every tensor is there once with its shape and type\n");
  } else {
    fmt::print("\nfiles    {}{} problem{}:\n", found.problems.size(),
               found.problems.size() >= kProblemsMax ? " or more" : "",
               found.problems.size() == 1 ? "" : "s");
  }
  for (const Error& problem : found.problems) fmt::print("  {}\n", problem.message);
  for (const std::string& warning : found.warnings) fmt::print("warning  {}\n", warning);
}

nlohmann::ordered_json machine_json(const Findings& found) {
  const Machine& machine = found.machine;
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  if (const auto devices = kernels::cuda::list_devices()) {
    for (const kernels::cuda::DeviceProperties& device : *devices) {
      gpus.push_back({{"name", device.name},
                      {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
                      {"multiprocessors", device.multiprocessors},
                      {"memory_bytes", device.memory_bytes},
                      {"usable", device.is_sm90()}});
    }
  }
  return {{"cpu", machine.cpu_name},
          {"cpus", machine.cpus},
          {"memory_bytes", machine.memory_bytes},
          {"available_bytes", machine.available_bytes},
          {"disk_free_bytes", found.disk_free_bytes},
          {"avx2", machine.has_avx2},
          {"avx512", machine.has_avx512},
          {"avx512_bf16", machine.has_avx512_bf16},
          {"gpus", gpus}};
}

nlohmann::ordered_json model_json(const Findings& found) {
  const Config& c = found.config;
  const Footprint& size = found.size;
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (int32_t i = 0; i < model::kPartCount; ++i) {
    const auto part = static_cast<Part>(i);
    if (size.part(part).bytes == 0) continue;
    parts[std::string(model::part_name(part))] = {{"parameters", size.part(part).parameters},
                                                  {"bytes", size.part(part).bytes}};
  }
  nlohmann::ordered_json dtypes = nlohmann::ordered_json::object();
  for (const model::DTypeSize& kind : size.dtypes) {
    dtypes[std::string(dtype_name(kind.dtype))] = {{"tensors", kind.tensors},
                                                   {"bytes", kind.bytes}};
  }
  return {{"layers", c.layers},
          {"hidden", c.hidden},
          {"vocab", c.vocab_size},
          {"experts", c.routed_experts},
          {"experts_per_token", c.experts_per_token},
          {"positions_max", c.positions_max},
          {"engram_layers", c.engram.layer_ids.size()},
          {"dspark_stages", c.dspark.stages},
          {"vision_layers", c.vision.layers},
          {"tensors", size.tensors},
          {"shards", found.shards},
          {"bytes", size.bytes},
          {"parameters", size.parameters},
          {"active_parameters", size.active_parameters},
          {"parts", parts},
          {"dtypes", dtypes}};
}

nlohmann::ordered_json fit_json(const Findings& found) {
  const Footprint& size = found.size;
  return {{"always_bytes", size.always_bytes},
          {"expert_bytes", size.expert_bytes},
          {"table_bytes", size.table_bytes},
          {"draft_bytes", size.draft_bytes},
          {"vision_bytes", size.vision_bytes},
          {"kv_bytes_per_token", size.kv_bytes_per_token},
          {"kv_bytes_per_sequence", size.kv_bytes_per_sequence},
          {"always_fit", found.fit.always},
          {"weights_fit", found.fit.weights},
          {"tables_fit", found.fit.tables},
          {"context_resident", found.fit.context_resident},
          {"context_paged", found.fit.context_paged}};
}

nlohmann::ordered_json fleets_json(const Findings& found) {
  nlohmann::ordered_json fleets = nlohmann::ordered_json::array();
  for (const model::CardKind& card : model::known_cards()) {
    const auto fleet = model::smallest_fleet(found.config, found.size, card, fleet_load(found));
    if (!fleet) continue;
    fleets.push_back({{"card", card.name},
                      {"cards", fleet->cards},
                      {"card_memory_bytes", card.memory_bytes},
                      {"expert_bytes", fleet->expert_bytes},
                      {"other_weight_bytes", fleet->other_bytes},
                      {"cache_bytes", fleet->cache_bytes},
                      {"workspace_bytes", fleet->workspace_bytes},
                      {"host_bytes", fleet->host_bytes},
                      {"link_bytes_per_s", card.link_bytes_per_s},
                      {"load_s", fleet->load_s}});
  }
  return fleets;
}

nlohmann::ordered_json serving_json(const Findings& found) {
  const ServingNeeds& needs = found.serving;
  return {{"sequences", needs.sequences},
          {"context", needs.context},
          {"page_bytes", needs.page_bytes},
          {"slot_bytes", needs.slot_bytes},
          {"workspace_bytes", needs.workspace_bytes},
          {"snapshot_bytes", needs.snapshot_bytes},
          {"connection_bytes_max", needs.connection_bytes},
          {"body_bytes_max", needs.body_bytes},
          {"file_bytes_max", needs.file_bytes},
          {"bytes", needs.kernel_bytes() + needs.host_bytes()},
          {"available_bytes", found.serving_available_bytes},
          {"fits", needs.kernel_bytes() + needs.host_bytes() <= found.serving_available_bytes}};
}

void print_json(const Findings& found) {
  nlohmann::ordered_json json;
  json["directory"] = found.directory;
  if (found.has_config) json["model"] = model_json(found);
  json["machine"] = machine_json(found);
  if (found.has_config) json["fit"] = fit_json(found);
  if (found.serving.sequences > 0) json["serve"] = serving_json(found);
  if (found.serving.sequences > 0) json["fleets"] = fleets_json(found);
  json["problems"] = nlohmann::ordered_json::array();
  for (const Error& problem : found.problems) json["problems"].push_back(problem.message);
  json["warnings"] = found.warnings;
  fmt::print("{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

int run_doctor(int argc, char** argv) {
  Command command("doctor",
                  "Says what a model needs, what fits on this machine, and whether its files are "
                  "whole.",
                  "galley doctor --model models/nano\n"
                  "galley doctor --model /data/DeepSeek-V4.1-Flash --json\n"
                  "\n"
                  "Reads headers only. Exit 0: whole; 1: something is wrong, one line each.");
  // What `serve` would take, with its defaults.
  ServeOptions serve = default_serve_options();
  std::string& directory = serve.model.model;
  bool as_json = false;
  add_model_directory(command, directory);
  add_serving_sizes(command, serve);
  add_engine_settings(command, serve.engine);
  command.argument("--json", as_json, "print one JSON object");
  if (const auto code = command.parse(argc, argv)) return *code;
  const auto place = find_model(directory);
  if (!place) return command.fail(place.error());

  const Findings found = examine(*place, serve);
  if (as_json) {
    print_json(found);
  } else {
    if (found.has_config) print_model(found);
    print_machine(found);
    if (found.has_config) print_fit(found);
    print_serving(found);
    print_fleets(found);
    print_problems(found);
  }
  return found.problems.empty() ? kExitOk : kExitFailed;
}

}  // namespace galley::tools
