#include "tools/loaded_model.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "tools/progress.h"

namespace galley::tools {

void add_engine_settings(Command& command, EngineSettings& settings) {
  command
      .setting("--context", settings.context,
               "Longest sequence in tokens; 0 = the model's, at most 16384")
      .range(0, 1e9)
      .value_name("N");
  command.setting("--rows", settings.rows, "Tokens of one step, prompts are cut to fit")
      .range(1, 65536)
      .value_name("N");
  command
      .setting("--replay", settings.replay,
               "Decoder replay in prefill: off (exact, twice the work), a, b, c (see docs)")
      .choices({"off", "a", "b", "c"})
      .value_name("WHICH");
  command
      .setting("--prefix-cache", settings.prefix_cache,
               "Computed prefixes are reused: off, bounded (the last window is computed again: "
               "cheap, approximate), exact (as much as gives the tokens of a cold run)")
      .choices({"off", "bounded", "exact"})
      .value_name("WHICH");
  command
      .setting("--async-scheduling", settings.async_scheduling,
               "Plan a step while the one before it is computed: more tokens a second, the same "
               "tokens; off shows how much, auto is on for a GPU")
      .choices({"auto", "on", "off"})
      .value_name("WHICH");
  command
      .setting("--prefix-ttl", settings.prefix_ttl_s,
               "Seconds after its last use at which a cached prefix is forgotten; 0 = never")
      .range(0, 1e9)
      .value_name("S");
  command
      .setting("--snapshot-memory", settings.snapshot_memory_mib,
               "MiB of host memory for the states of sequences: of those that give way, which "
               "then go on where they were, and of prompts and answers, whose next turn then "
               "replays nothing; 0 = none")
      .range(0, 1e9)
      .value_name("MIB");
}

Result<model::DecoderReplay> parse_replay(const std::string& name) {
  if (name == "off") return model::DecoderReplay::kOff;
  if (name == "a") return model::DecoderReplay::kLayerWhole;
  if (name == "b") return model::DecoderReplay::kWindowAndGlobal;
  if (name == "c") return model::DecoderReplay::kGlobalOnly;
  return Error{ErrorCode::kInvalid, "no decoder replay \"" + name + "\""};
}

Result<engine::PrefixReplay> parse_prefix_cache(const std::string& name) {
  if (name == "off") return engine::PrefixReplay::kOff;
  if (name == "bounded") return engine::PrefixReplay::kBounded;
  if (name == "exact") return engine::PrefixReplay::kExact;
  return Error{ErrorCode::kInvalid, "no prefix cache \"" + name + "\""};
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::open(const ModelSettings& settings,
                                                       LoadWatch* watch) {
  const std::string directory = TRY(find_model(settings.model));
  if (watch != nullptr) watch->enter("tokenizer", 0);
  model::Tokenizer tokenizer = TRY(model::Tokenizer::open(directory));
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(std::move(tokenizer)));
  loaded->directory_ = directory;
  loaded->codec_ = TRY(serve::ChatCodec::create(loaded->tokenizer_));
  loaded->backend_ = TRY(make_backend(settings.backend, settings.threads));
  if (watch != nullptr) watch->enter("checkpoint", 0);
  loaded->model_ = TRY(model::Model::open(directory));
  return loaded;
}

Result<engine::GeneratorOptions> engine_options(const model::Config& config,
                                                const EngineSettings& settings) {
  if (settings.context > config.positions_max) {
    return Error{ErrorCode::kInvalid, "--context " + std::to_string(settings.context) +
                                          " exceeds the model's " +
                                          std::to_string(config.positions_max) + " positions"};
  }
  const int64_t context =
      settings.context > 0 ? settings.context : std::min(kDefaultContext, config.positions_max);
  engine::GeneratorOptions options =
      engine::generator_options(config, settings.sequences, settings.rows, context);
  options.replay = TRY(parse_replay(settings.replay));
  options.prefix = TRY(parse_prefix_cache(settings.prefix_cache));
  options.async_scheduling = settings.async_scheduling == "on";
  options.prefix_ttl_s = settings.prefix_ttl_s;
  TRY(engine::size_snapshots(config, settings.snapshot_memory_mib << 20, options));
  return options;
}

Result<engine::GeneratorOptions> LoadedModel::make_executor(const EngineSettings& settings) {
  engine::GeneratorOptions options = TRY(engine_options(config(), settings));
  options.on_upload = show_upload();
  if (settings.async_scheduling == "auto") {
    options.async_scheduling = !backend_.ops->memory().is_host();
  }
  executor_ = TRY(engine::LocalExecutor::create(*model_, *backend_.ops, options));
  return options;
}

Result<void> LoadedModel::start_engine(const EngineSettings& settings) {
  const engine::GeneratorOptions options = TRY(make_executor(settings));
  generator_ = std::make_unique<engine::Generator>(*executor_, options);
  return {};
}

Result<std::unique_ptr<engine::Engine>> LoadedModel::make_engine(const EngineSettings& settings) {
  const engine::GeneratorOptions options = TRY(make_executor(settings));
  return std::make_unique<engine::Engine>(*executor_, options);
}

int64_t peak_memory_bytes() {
  // Not getrusage: its maximum survives exec, and would count whoever started this program.
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kib = 0;
  while (status >> word) {
    if (word == "VmHWM:" && status >> kib) break;
  }
  return kib * 1024;
}

}  // namespace galley::tools
