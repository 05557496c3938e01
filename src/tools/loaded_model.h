// What the verbs that compute share: the settings that name a model and a
// machine, and the model made ready by them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/generator.h"
#include "engine/local_executor.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "serve/codec.h"
#include "tools/backend.h"
#include "tools/command.h"
#include "tools/load_watch.h"
#include "tools/model_settings.h"

namespace galley::tools {

struct EngineSettings {
  int32_t sequences = 1;
  int32_t rows = 512;
  int64_t context = 0;  // 0: what the model was made for, at most kDefaultContext
  std::string replay = "b";
  std::string prefix_cache = "off";
  std::string async_scheduling = "auto";
  int64_t prefix_ttl_s = 0;
  int64_t snapshot_memory_mib = 256;
};

// A context that a laptop holds; --context asks for more.
constexpr int64_t kDefaultContext = 16384;

void add_engine_settings(Command& command, EngineSettings& settings);

// What an engine over a model of this config is sized for; kInvalid with what does not go together.
Result<engine::GeneratorOptions> engine_options(const model::Config& config,
                                                const EngineSettings& settings);

class LoadedModel {
 public:
  // Tells the watch, if there is one, which phase it enters.
  static Result<std::unique_ptr<LoadedModel>> open(const ModelSettings& settings,
                                                   LoadWatch* watch = nullptr);

  const std::string& directory() const { return directory_; }
  const model::Model& model() const { return *model_; }
  const model::Config& config() const { return model_->config(); }
  const model::Tokenizer& tokenizer() const { return tokenizer_; }
  const serve::ChatCodec& codec() const { return *codec_; }
  kernels::Ops& ops() const { return *backend_.ops; }
  int thread_count() const { return backend_.pool->thread_count(); }

  // Builds executor and generator; call once.
  Result<void> start_engine(const EngineSettings& settings);
  // Builds the executor and an engine on a thread of its own, which must end before this model
  // does; call once, and instead of the above.
  Result<std::unique_ptr<engine::Engine>> make_engine(const EngineSettings& settings);
  engine::Generator& generator() { return *generator_; }

 private:
  Result<engine::GeneratorOptions> make_executor(const EngineSettings& settings);

  explicit LoadedModel(model::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::string directory_;
  Backend backend_;
  std::unique_ptr<model::Model> model_;
  model::Tokenizer tokenizer_;
  std::optional<serve::ChatCodec> codec_;
  std::unique_ptr<engine::LocalExecutor> executor_;
  std::unique_ptr<engine::Generator> generator_;
};

Result<model::DecoderReplay> parse_replay(const std::string& name);
Result<engine::PrefixReplay> parse_prefix_cache(const std::string& name);

// The most memory this process has held, in bytes.
int64_t peak_memory_bytes();

}  // namespace galley::tools
