// galley eval: bits per byte of texts, and accuracy on sets of tasks.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/line_reader.h"
#include "base/utf8.h"
#include "tools/answer_text.h"
#include "tools/exit_code.h"
#include "tools/interrupt.h"
#include "tools/likelihood.h"
#include "tools/loaded_model.h"
#include "tools/progress.h"
#include "tools/task_check.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr size_t kTextBytesMax = size_t{256} << 20;
constexpr size_t kCaseBytesMax = size_t{16} << 20;

struct EvalOptions {
  std::vector<std::string> files;
  std::vector<std::string> tasks;
  std::string cases_file;
  int64_t window = 4096;
  bool json = false;
  bool progress = false;
  ModelSettings model;
  EngineSettings engine;
};

void print_line(const Json& json) {
  std::puts(json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

// --- bits per byte -----------------------------------------------------------

struct TextScore {
  std::string name;
  int64_t bytes = 0;
  int64_t tokens = 0;
  double nats = 0;

  double bits_per_byte() const {
    return bytes > 0 ? nats / std::log(2.0) / static_cast<double>(bytes) : 0.0;
  }
};

void print_score(const EvalOptions& options, const TextScore& score) {
  if (options.json) {
    print_line({{"text", score.name},
                {"bits_per_byte", score.bits_per_byte()},
                {"bytes", score.bytes},
                {"tokens", score.tokens},
                {"nats", score.nats}});
  } else {
    std::printf("%8.4f bits per byte  %12s bytes  %10s tokens  %s\n", score.bits_per_byte(),
                format_count(score.bytes).c_str(), format_count(score.tokens).c_str(),
                score.name.c_str());
    std::fflush(stdout);
  }
}

struct Text {
  TextScore score;
  std::vector<int32_t> tokens;
};

Result<Text> read_text(const std::string& path, const model::Tokenizer& tokenizer) {
  const std::string content = TRY(read_file(path, kTextBytesMax));
  if (!is_utf8(content)) return Error{ErrorCode::kInvalid, path + " is not UTF-8"};
  Text text;
  text.score.name = path;
  text.score.bytes = static_cast<int64_t>(content.size());
  text.tokens = TRY(tokenizer.encode(content, model::Markup::kPlain));
  text.score.tokens = static_cast<int64_t>(text.tokens.size());
  return text;
}

Result<void> score_texts(const EvalOptions& options, const LoadedModel& loaded) {
  std::vector<Text> texts;
  TextScore total;
  for (const std::string& path : options.files) {
    texts.push_back(TRY(read_text(path, loaded.tokenizer())));
    total.bytes += texts.back().score.bytes;
    total.tokens += texts.back().score.tokens;
  }
  if (total.tokens == 0) return Error{ErrorCode::kInvalid, "the texts are empty"};
  const std::unique_ptr<Likelihood> likelihood = TRY(
      Likelihood::create(loaded.model(), loaded.ops(), options.window, loaded.codec().begin_id()));
  Progress progress({.unit = "tokens", .total = total.tokens, .wanted = options.progress});
  int64_t done = 0;
  for (Text& text : texts) {
    text.score.nats = TRY(likelihood->nats(text.tokens, [&](int64_t tokens) {
      progress.update(done + tokens);
      return !interrupted();
    }));
    done += text.score.tokens;
    total.nats += text.score.nats;
    progress.clear();
    print_score(options, text.score);
  }
  progress.finish(done);
  total.name = "all " + std::to_string(texts.size()) + " texts";
  if (texts.size() > 1) print_score(options, total);
  return {};
}

// --- tasks -------------------------------------------------------------------

struct Tally {
  int64_t cases = 0;
  int64_t passed = 0;
  int64_t formed_cases = 0;  // those where form is judged apart
  int64_t formed = 0;

  void add(const Verdict& verdict) {
    ++cases;
    passed += verdict.passed ? 1 : 0;
    if (!verdict.well_formed) return;
    ++formed_cases;
    formed += *verdict.well_formed ? 1 : 0;
  }
};

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

Result<std::vector<TaskCase>> read_cases(const std::vector<std::string>& paths) {
  std::vector<TaskCase> cases;
  for (const std::string& path : paths) {
    LineReader reader = TRY(LineReader::open(path, kCaseBytesMax));
    int64_t without_check = 0;
    while (const std::optional<Line> line = TRY(reader.next())) {
      if (line->text.empty()) continue;
      Result<TaskCase> task = parse_task_case(line->text);
      if (!task && task.error().code == ErrorCode::kUnsupported) {
        ++without_check;
        continue;
      }
      if (!task) {
        return with_context(task.error(), path + " line " + std::to_string(line->number));
      }
      cases.push_back(std::move(*task));
    }
    if (without_check > 0) {
      std::fprintf(stderr, "galley eval: %s: %lld cases have no check and are left out\n",
                   path.c_str(), static_cast<long long>(without_check));
    }
  }
  if (cases.empty()) return Error{ErrorCode::kInvalid, "the task files have no case to judge"};
  return cases;
}

// The model's answers, best token always; by case.
class TaskRun {
 public:
  TaskRun(const EvalOptions& options, LoadedModel& loaded, std::vector<TaskCase> cases)
      : options_(options),
        loaded_(loaded),
        cases_(std::move(cases)),
        outputs_(cases_.size()),
        progress_({.unit = "cases",
                   .total = static_cast<int64_t>(cases_.size()),
                   .wanted = options.progress}) {}

  Result<void> run() {
    for (const TaskCase& task : cases_) TRY(prepare(task));
    size_t next = 0;
    engine::Generator& generator = loaded_.generator();
    while (next < cases_.size() || !generator.idle()) {
      while (next < cases_.size() && generator.waiting_count() < options_.engine.sequences) {
        engine::GenerateRequest request = std::move(requests_[next]);
        Result<void> submitted = generator.submit(std::move(request));
        if (!submitted) return with_context(submitted.error(), "case " + cases_[next].id);
        ++next;
      }
      const engine::StepOutcome step = TRY(generator.step());
      for (const engine::TokenEvent& event : step.events) TRY(take(event));
      progress_.update(done_, format_count(tokens_) + " tokens");
      if (interrupted()) return Error{ErrorCode::kCancelled, "interrupted"};
    }
    progress_.finish(done_);
    return {};
  }

  // Judges everything; writes a line for each case if asked to.
  Result<std::map<std::string, std::map<std::string, Tally>>> judge_all() const {
    std::map<std::string, std::map<std::string, Tally>> tallies;
    std::string lines;
    for (size_t i = 0; i < cases_.size(); ++i) {
      const TaskCase& task = cases_[i];
      const std::string output = TRY(loaded_.tokenizer().decode(outputs_[i]));
      const Verdict verdict = judge(task, output);
      tallies[task.task][task.bucket].add(verdict);
      if (options_.cases_file.empty()) continue;
      Json line = {{"id", task.id}, {"passed", verdict.passed}, {"output", output}};
      if (verdict.well_formed) line["well_formed"] = *verdict.well_formed;
      lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
    if (!options_.cases_file.empty()) TRY(write_file_atomic(options_.cases_file, lines));
    return tallies;
  }

 private:
  Result<void> prepare(const TaskCase& task) {
    engine::GenerateRequest request;
    request.id = engine::SequenceId{requests_.size()};
    Result<std::vector<int32_t>> ids =
        loaded_.tokenizer().encode(task.prompt, model::Markup::kActive);
    if (!ids) return with_context(ids.error(), "case " + task.id);
    request.prompt = std::move(*ids);
    request.output_tokens_max = task.output_tokens_max;
    request.stop_tokens = {loaded_.codec().end_id()};
    request.sampling.temperature = 0;
    requests_.push_back(std::move(request));
    return {};
  }

  Result<void> take(const engine::TokenEvent& event) {
    const auto index = static_cast<size_t>(event.id);
    if (event.finish == engine::FinishReason::kFailed) {
      return Error{ErrorCode::kCorrupt,
                   "the model gave logits that are no numbers in case " + cases_[index].id};
    }
    ++tokens_;
    if (event.finish != engine::FinishReason::kStop) outputs_[index].push_back(event.token);
    if (event.finish != engine::FinishReason::kNone) ++done_;
    return {};
  }

  const EvalOptions& options_;
  LoadedModel& loaded_;
  std::vector<TaskCase> cases_;
  std::vector<engine::GenerateRequest> requests_;
  std::vector<std::vector<int32_t>> outputs_;
  Progress progress_;
  int64_t done_ = 0;
  int64_t tokens_ = 0;
};

void print_tally(const EvalOptions& options, const std::string& task, const std::string& bucket,
                 const Tally& tally) {
  if (options.json) {
    Json json = {{"task", task},
                 {"bucket", bucket},
                 {"cases", tally.cases},
                 {"passed", tally.passed},
                 {"accuracy", share(tally.passed, tally.cases)}};
    if (tally.formed_cases > 0) json["well_formed"] = share(tally.formed, tally.formed_cases);
    print_line(json);
    return;
  }
  std::printf("%-14s %-14s %6.1f %%  %5lld of %5lld", task.c_str(), bucket.c_str(),
              100 * share(tally.passed, tally.cases), static_cast<long long>(tally.passed),
              static_cast<long long>(tally.cases));
  if (tally.formed_cases > 0) {
    std::printf("   well-formed %5.1f %%", 100 * share(tally.formed, tally.formed_cases));
  }
  std::putchar('\n');
}

Result<void> run_tasks(const EvalOptions& options, LoadedModel& loaded) {
  std::vector<TaskCase> cases = TRY(read_cases(options.tasks));
  TRY(loaded.start_engine(options.engine));
  TaskRun tasks(options, loaded, std::move(cases));
  TRY(tasks.run());
  const auto tallies = TRY(tasks.judge_all());
  for (const auto& [task, buckets] : tallies) {
    Tally all;
    for (const auto& [bucket, tally] : buckets) {
      print_tally(options, task, bucket, tally);
      all.cases += tally.cases;
      all.passed += tally.passed;
      all.formed_cases += tally.formed_cases;
      all.formed += tally.formed;
    }
    if (buckets.size() > 1) print_tally(options, task, "all", all);
  }
  return {};
}

Result<void> run(const EvalOptions& options) {
  std::unique_ptr<LoadedModel> loaded = TRY(LoadedModel::open(options.model));
  if (!options.files.empty()) TRY(score_texts(options, *loaded));
  if (!options.tasks.empty()) TRY(run_tasks(options, *loaded));
  return {};
}

}  // namespace

int run_eval(int argc, char** argv) {
  EvalOptions options;
  options.engine.sequences = 32;
  Command command(
      "eval", "Measures a model: bits per byte of texts, accuracy on sets of tasks.",
      "  galley eval book.txt story.txt\n"
      "  galley eval --task training/tasks/retrieval.jsonl --json\n"
      "\nBits per byte: every file alone, in windows that each begin with the begin token,\n"
      "no overlap, every token once, decoder replay off. Tasks run at temperature 0.\n"
      "\nExit codes: 0 ok, 1 failed, 64 wrong usage, 130 interrupted.\n");
  command.argument("files", options.files, "UTF-8 texts");
  command.argument("--task", options.tasks, "A set of tasks, one JSON object a line; may repeat")
      .value_name("FILE");
  command.argument("--cases", options.cases_file, "Write every case's output and verdict there")
      .value_name("FILE");
  command.argument("--progress", options.progress, "Progress also when stderr is no terminal");
  command.argument("--json", options.json, "One JSON object a line");
  command.setting("--window", options.window, "Tokens of a window, the begin token included")
      .range(2, 1e7)
      .value_name("N");
  command.setting("--sequences", options.engine.sequences, "Cases that run together")
      .range(1, 1024)
      .value_name("N");
  add_model_settings(command, options.model);
  add_engine_settings(command, options.engine);
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  if (options.files.empty() && options.tasks.empty()) {
    return command.usage("nothing to measure; name texts, or sets with --task");
  }
  listen_for_interrupt();
  const Result<void> done = run(options);
  return done ? kExitOk : command.fail(done.error());
}

}  // namespace galley::tools
