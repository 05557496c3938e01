// A real model as a user meets it: through the generator, and from the start of
// the program to its first token.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "tools/bench_case.h"
#include "tools/interrupt.h"
#include "tools/loaded_model.h"
#include "tools/step_work.h"

extern char** environ;

namespace galley::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct Timing {
  double prefill_s = 0;
  double decode_s = 0;
  int64_t decode_steps = 0;
};

// `sequences` prompts of random tokens, then `output` tokens each.
Result<Timing> generate(engine::Generator& generator, int32_t sequences, int32_t prompt_tokens,
                        int32_t output_tokens, uint64_t seed) {
  for (int32_t i = 0; i < sequences; ++i) {
    engine::GenerateRequest request;
    request.id = engine::SequenceId{static_cast<uint64_t>(i)};
    for (int32_t t = 0; t < prompt_tokens; ++t) {
      const auto draw = static_cast<uint64_t>(int64_t{i} * prompt_tokens + t);
      request.prompt.push_back(
          static_cast<int32_t>(random_unit(seed, draw) * generator.options().vocab_size));
    }
    request.output_tokens_max = output_tokens;
    request.sampling.seed = seed + static_cast<uint64_t>(i);
    TRY(generator.submit(std::move(request)));
  }
  Timing timing;
  while (!generator.idle()) {
    if (interrupted()) return Error{ErrorCode::kCancelled, "interrupted"};
    const Clock::time_point begin = Clock::now();
    const engine::StepOutcome step = TRY(generator.step());
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (step.prefill_rows > 0) {
      timing.prefill_s += seconds;
    } else if (step.decode_rows == sequences) {
      timing.decode_s += seconds;
      ++timing.decode_steps;
    }
  }
  return timing;
}

struct Shape {
  const char* name;
  int32_t sequences;
  int32_t prompt_tokens;
  int32_t output_tokens;
  bool prefill;  // what is reported
  double bar;    // tokens per second, two threads or one card
};

// A card is asked for more, and by more sequences.
std::vector<Shape> shapes_of(bool on_host, int32_t longest) {
  if (on_host) {
    return {{"decode_1", 1, 64, 256, false, 1000},
            {"decode_32", 32, 32, 64, false, 4000},
            {"prefill", 1, longest, 1, true, 6000}};
  }
  return {{"decode_1", 1, 64, 256, false, 2500},
          {"decode_32", 32, 32, 64, false, 4000},
          {"decode_256", 256, 32, 128, false, 300'000},
          {"prefill", 1, longest, 1, true, 6000}};
}

Result<BenchCase> measure(LoadedModel& loaded, const ModelBenchOptions& options,
                          const Shape& shape) {
  engine::Generator& generator = loaded.generator();
  Error failure = {ErrorCode::kInvalid, ""};
  uint64_t seed = 1;
  const auto once = [&]() -> double {
    const Result<Timing> timing =
        generate(generator, shape.sequences, shape.prompt_tokens, shape.output_tokens, seed++);
    if (!timing) {
      failure = timing.error();
      return 0;
    }
    return shape.prefill ? timing->prefill_s
                         : timing->decode_s / static_cast<double>(timing->decode_steps);
  };
  BenchCase bench;
  bench.name = shape.name;
  bench.shape = loaded.directory();
  bench.sequences = shape.sequences;
  bench.rows = shape.prefill ? int64_t{shape.sequences} * shape.prompt_tokens : shape.sequences;
  bench.context = shape.prompt_tokens + shape.output_tokens;
  bench.threads = loaded.thread_count();
  bench.samples = options.samples;
  bench.median_s = median_seconds(1, options.samples, once);
  if (!failure.message.empty()) return failure;
  const int64_t step_rows =
      shape.prefill ? std::min<int64_t>(bench.rows, generator.options().rows_max) : bench.rows;
  const Work work =
      StepWork(loaded.config())
          .of({.rows = bench.rows,
               .sequences = shape.sequences,
               .logit_rows = shape.sequences,
               .first_position = shape.prefill ? 0 : shape.prompt_tokens + shape.output_tokens / 2,
               .experts_touched =
                   loaded.config().layers *
                   StepWork::distinct_experts(loaded.config(), static_cast<double>(step_rows))});
  bench.bytes = work.bytes();
  bench.operations = work.operations();
  char bar[64];
  std::snprintf(bar, sizeof bar, "%.0f tokens/s on %s", shape.bar,
                loaded.ops().memory().is_host() ? "two threads" : "a card");
  bench.bar = bar;
  bench.met = bench.rows_per_s() >= shape.bar;
  return bench;
}

struct ChildRun {
  double seconds = 0;
  int64_t peak_bytes = 0;
};

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(fd, buffer, sizeof buffer)) > 0 || (count < 0 && errno == EINTR)) {
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

// This program again, `galley run` of a few tokens, from exec to exit.
Result<ChildRun> run_child(const ModelBenchOptions& options, int32_t tokens, int32_t threads) {
  std::vector<std::string> words = {"galley",
                                    "run",
                                    "Once upon a time",
                                    "--json",
                                    "--ignore-end",
                                    "--model",
                                    options.directory,
                                    "--backend",
                                    options.backend,
                                    "-n",
                                    std::to_string(tokens),
                                    "--threads",
                                    std::to_string(threads)};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int output[2];
  if (::pipe2(output, O_CLOEXEC) != 0) return Error{ErrorCode::kIo, "cannot make a pipe"};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  const Clock::time_point begin = Clock::now();
  pid_t child = 0;
  const int failed =
      ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(output[1]);
  const std::string text = failed == 0 ? read_all(output[0]) : "";
  ::close(output[0]);
  if (failed != 0) return Error{ErrorCode::kIo, "cannot start the program again"};
  int status = 0;
  ::waitpid(child, &status, 0);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (status != 0) return Error{ErrorCode::kIo, "galley run failed on " + options.directory};
  const JsonDocument document = TRY(JsonDocument::parse(text));
  const JsonValue peak = TRY(document.root().at("peak_memory_bytes"));
  return ChildRun{seconds, TRY(peak.as_integer(0))};
}

int64_t model_file_bytes(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    if (entry.path().extension() == ".safetensors") {
      bytes += static_cast<int64_t>(entry.file_size(ignored));
    }
  }
  return bytes;
}

Result<void> measure_start(const ModelBenchOptions& options, int32_t threads,
                           const ReportCase& report) {
  std::vector<ChildRun> runs;
  for (int i = 0; i < options.samples + 1; ++i) runs.push_back(TRY(run_child(options, 1, threads)));
  std::sort(runs.begin() + 1, runs.end(),
            [](const ChildRun& a, const ChildRun& b) { return a.seconds < b.seconds; });
  BenchCase bench;
  bench.name = "start_to_first_token";
  bench.shape = options.directory;
  bench.rows = 1;
  bench.threads = threads;
  bench.samples = options.samples;
  bench.median_s = runs[1 + options.samples / 2].seconds;
  bench.bar = "0.3 s, exit of the program included";
  bench.met = bench.median_s < 0.3;
  report(bench);
  const ChildRun longer = TRY(run_child(options, 256, threads));
  BenchCase memory;
  memory.name = "peak_memory";
  memory.shape = options.directory;
  memory.threads = threads;
  memory.samples = 1;
  memory.rows = 256;
  memory.median_s = longer.seconds;
  memory.bytes = static_cast<double>(longer.peak_bytes);
  const int64_t allowed = model_file_bytes(options.directory) + (int64_t{150} << 20);
  memory.bar = std::to_string(allowed) + " bytes (files + 150 MiB)";
  memory.met = longer.peak_bytes <= allowed;
  report(memory);
  return {};
}

}  // namespace

Result<void> bench_model(const Floors&, const ModelBenchOptions& options,
                         const ReportCase& report) {
  for (const int32_t threads : options.threads) {
    ModelSettings settings;
    settings.model = options.directory;
    settings.backend = options.backend;
    settings.threads = threads;
    std::unique_ptr<LoadedModel> loaded = TRY(LoadedModel::open(settings));
    EngineSettings engine;
    const bool on_host = loaded->ops().memory().is_host();
    engine.sequences = on_host ? 32 : 256;
    engine.rows = 512;
    TRY(loaded->start_engine(engine));
    const auto longest = static_cast<int32_t>(
        std::min<int64_t>(2048, loaded->generator().options().positions_max - 1));
    for (const Shape& shape : shapes_of(on_host, longest)) {
      report(TRY(measure(*loaded, options, shape)));
    }
  }
  return measure_start(options, options.threads.back(), report);
}

}  // namespace galley::tools
