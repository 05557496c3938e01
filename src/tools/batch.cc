// galley batch: many requests from a file, answered into another.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/line_reader.h"
#include "serve/batch_line.h"
#include "tools/answer_text.h"
#include "tools/batch_output.h"
#include "tools/exit_code.h"
#include "tools/interrupt.h"
#include "tools/loaded_model.h"
#include "tools/progress.h"
#include "tools/sampling_settings.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Requests in flight or done but behind an unfinished one, for each that runs: enough that one
// long answer does not idle the others.
constexpr int32_t kWindowPerSequence = 16;
constexpr std::chrono::seconds kSyncEvery{5};

struct BatchOptions {
  std::string input;
  std::string output;
  bool progress = false;
  bool json = false;
  int32_t output_tokens_max = 512;
  ModelSettings model;
  EngineSettings engine;
  engine::SamplingOptions sampling;
};

// One line of the input on its way to the output.
struct Entry {
  std::string custom_id;
  int64_t line_number = 0;
  uint64_t line_hash = 0;
  bool done = false;
  std::string record;  // once done
  serve::BatchAnswer answer;
  std::unique_ptr<AnswerText> decoder;
};

struct Counts {
  int64_t answered = 0;
  int64_t failed = 0;
  int64_t skipped = 0;  // done by an earlier run
  int64_t tokens = 0;
};

class Batch {
 public:
  Batch(const BatchOptions& options, LoadedModel& loaded, LineReader reader, BatchOutput output,
        int64_t line_count)
      : options_(options),
        loaded_(loaded),
        reader_(std::move(reader)),
        output_(std::move(output)),
        progress_({.unit = "lines", .total = line_count, .begin = 0, .wanted = options.progress}),
        window_(static_cast<size_t>(std::min(options.engine.sequences * kWindowPerSequence,
                                             loaded.generator().options().waiting_max))),
        begin_(Clock::now()),
        synced_(begin_) {
    told_.reserve(window_);
  }

  // True when every line was dealt with, false when interrupted.
  Result<bool> run() {
    while (!interrupted()) {
      TRY(read_ahead());
      if (entries_.empty() && input_ended_) break;
      // What a step told is taken while the next one is computed.
      const auto take_told = [this] { take_events(); };
      const Result<engine::StepOutcome> step = loaded_.generator().step({}, take_told);
      if (!step) {
        take_events();
        TRY(write_done());
        return step.error();
      }
      told_.assign(step->events.begin(), step->events.end());
      TRY(write_done());
      progress_.update(line_number_ - static_cast<int64_t>(entries_.size()), rate_text());
    }
    take_events();
    const bool complete = entries_.empty() && input_ended_;
    if (!complete) TRY(keep_finished());
    TRY(output_.sync());
    progress_.finish(line_number_ - static_cast<int64_t>(entries_.size()), rate_text());
    return complete;
  }

  const Counts& counts() const { return counts_; }
  const BatchOutput& output() const { return output_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  std::string rate_text() const {
    return format_count(std::llround(static_cast<double>(counts_.tokens) / seconds())) +
           " tokens/s";
  }

  Result<void> read_ahead() {
    while (!input_ended_ && entries_.size() < window_ && !interrupted()) {
      Result<std::optional<Line>> line = reader_.next();
      if (!line && line.error().code == ErrorCode::kCancelled) return {};
      if (!line) return line.error();
      if (!line->has_value()) {
        input_ended_ = true;
        return {};
      }
      line_number_ = (*line)->number;
      take_line(**line);
    }
    return {};
  }

  void take_line(const Line& line) {
    if (line.text.find_first_not_of(" \t") == std::string_view::npos) return;
    Entry entry;
    entry.line_number = line.number;
    entry.line_hash = serve::hash_line(line.text);
    if (output_.holds_failure(line.number, entry.line_hash)) {
      ++counts_.skipped;
      progress_.skip(1);
      if (const auto id = serve::custom_id_of(line.text)) seen_.emplace(*id, line.number);
      return;
    }
    Result<serve::BatchRequest> request =
        line.too_long
            ? Result<serve::BatchRequest>(Error{
                  ErrorCode::kInvalid, "the line is longer than " +
                                           std::to_string(serve::kBatchLineBytesMax) + " bytes"})
            : serve::parse_batch_line(line.text, options_.sampling);
    if (!request) {
      // A line that names itself keeps its name, even if it cannot be answered.
      if (!line.too_long) entry.custom_id = serve::custom_id_of(line.text).value_or("");
      if (!entry.custom_id.empty()) seen_.emplace(entry.custom_id, line.number);
      return push_failed(entry, request.error().message);
    }
    entry.custom_id = request->custom_id;
    const auto [first, is_new] = seen_.emplace(entry.custom_id, line.number);
    if (!is_new) {
      return push_failed(entry, "custom_id \"" + entry.custom_id + "\" was used on line " +
                                    std::to_string(first->second) + " already");
    }
    if (output_.holds_answer(entry.custom_id)) {
      ++counts_.skipped;
      progress_.skip(1);
      return;
    }
    const Result<void> submitted = submit(*request, entry);
    if (!submitted) return push_failed(entry, submitted.error().message);
    entries_.push_back(std::move(entry));
  }

  Result<void> submit(serve::BatchRequest& request, Entry& entry) {
    engine::GenerateRequest generate;
    generate.id = engine::SequenceId{first_id_ + entries_.size()};
    if (request.text) {
      generate.prompt = TRY(loaded_.codec().encode_text(*request.text, model::Markup::kPlain));
    } else if (request.conversation) {
      generate.prompt = TRY(loaded_.codec().encode(*request.conversation)).ids;
    } else {
      generate.prompt = std::move(request.ids);
    }
    entry.answer.prompt_tokens = static_cast<int64_t>(generate.prompt.size());
    // What the line asks for is taken or refused; the default gives way to the context.
    const int64_t room = loaded_.generator().options().positions_max - entry.answer.prompt_tokens;
    generate.output_tokens_max = request.output_tokens_max.value_or(static_cast<int32_t>(
        std::max<int64_t>(1, std::min<int64_t>(options_.output_tokens_max, room))));
    generate.stop_tokens = std::move(request.stop_tokens);
    generate.stop_tokens.push_back(loaded_.codec().end_id());
    generate.sampling = std::move(request.sampling);
    TRY(loaded_.generator().submit(std::move(generate)));
    entry.decoder = std::make_unique<AnswerText>(loaded_.tokenizer(), loaded_.codec(), false,
                                                 std::move(request.stop_texts));
    return {};
  }

  void push_failed(Entry& entry, const std::string& message) {
    fail(entry, message);
    entries_.push_back(std::move(entry));
  }

  void fail(Entry& entry, const std::string& message) {
    ++counts_.failed;
    const std::optional<std::string> id =
        entry.custom_id.empty() ? std::nullopt : std::optional(entry.custom_id);
    entry.record = serve::error_line(id, entry.line_number, entry.line_hash, message);
    entry.done = true;
  }

  void take_events() {
    for (const engine::TokenEvent& event : told_) take(event);
    told_.clear();
  }

  void take(const engine::TokenEvent& event) {
    const auto id = static_cast<uint64_t>(event.id);
    if (id < first_id_ || entries_[id - first_id_].done) return;  // a stop sequence ended it
    Entry& entry = entries_[id - first_id_];
    if (event.has_token) {
      ++counts_.tokens;
      entry.answer.ids.push_back(event.token);
      if (event.finish != engine::FinishReason::kStop) {
        entry.answer.text += entry.decoder->push(event.token);
      }
    }
    if (event.finish == engine::FinishReason::kFailed) {
      return fail(entry, "the model gave logits that are no numbers");
    }
    if (entry.decoder->stopped()) {
      if (event.finish == engine::FinishReason::kNone) loaded_.generator().cancel(event.id);
      return complete(entry, engine::FinishReason::kStop);
    }
    if (event.finish == engine::FinishReason::kNone) return;
    entry.answer.text += entry.decoder->finish();
    complete(entry, entry.decoder->stopped() ? engine::FinishReason::kStop : event.finish);
  }

  void complete(Entry& entry, engine::FinishReason finish) {
    entry.answer.finish_reason = engine::finish_name(finish);
    entry.record = serve::answer_line(entry.custom_id, entry.answer);
    entry.done = true;
    ++counts_.answered;
  }

  // In the order of the input, so that the file does not depend on who finished first.
  Result<void> write_done() {
    while (!entries_.empty() && entries_.front().done) {
      TRY(output_.append(entries_.front().record));
      entries_.pop_front();
      ++first_id_;
    }
    if (Clock::now() - synced_ > kSyncEvery) {
      TRY(output_.sync());
      synced_ = Clock::now();
    }
    return {};
  }

  // Interrupted: answers behind an unfinished one are kept as well.
  Result<void> keep_finished() {
    for (const Entry& entry : entries_) {
      if (entry.done) TRY(output_.append(entry.record));
    }
    return {};
  }

  const BatchOptions& options_;
  LoadedModel& loaded_;
  LineReader reader_;
  BatchOutput output_;
  Progress progress_;
  size_t window_;
  Clock::time_point begin_;
  Clock::time_point synced_;

  bool input_ended_ = false;
  int64_t line_number_ = 0;
  std::vector<engine::TokenEvent> told_;  // by the last step, but for its log-probabilities
  // Entry i runs as sequence first_id_ + i.
  std::deque<Entry> entries_;
  uint64_t first_id_ = 0;
  std::unordered_map<std::string, int64_t> seen_;  // custom_id -> its first line
  Counts counts_;
};

void print_summary(const BatchOptions& options, const Batch& batch, bool complete) {
  const Counts& counts = batch.counts();
  if (options.json) {
    nlohmann::ordered_json json;
    json["answered"] = counts.answered;
    json["failed"] = counts.failed;
    json["done_before"] = counts.skipped;
    json["completion_tokens"] = counts.tokens;
    json["seconds"] = batch.seconds();
    json["complete"] = complete;
    std::puts(json.dump().c_str());
    return;
  }
  std::fprintf(stderr, "%s: %s answered, %s failed, %s done before; %s tokens in %s\n",
               options.output.c_str(), format_count(counts.answered).c_str(),
               format_count(counts.failed).c_str(), format_count(counts.skipped).c_str(),
               format_count(counts.tokens).c_str(), format_duration(batch.seconds()).c_str());
}

Result<int> run(const BatchOptions& options) {
  int64_t line_count = 0;
  if (options.input != "-") line_count = TRY(count_lines(options.input));
  LineReader reader = TRY(LineReader::open(options.input, serve::kBatchLineBytesMax));
  BatchOutput output = TRY(BatchOutput::open(options.output));
  if (options.input != "-" && output.is_same_file(options.input)) {
    return Error{ErrorCode::kInvalid, "input and output are the same file: " + options.output};
  }
  std::unique_ptr<LoadedModel> loaded = TRY(LoadedModel::open(options.model));
  TRY(loaded->start_engine(options.engine));
  if (output.repaired()) {
    std::fprintf(stderr, "galley batch: %s ended in a torn line, which is computed again\n",
                 options.output.c_str());
  }
  Batch batch(options, *loaded, std::move(reader), std::move(output), line_count);
  const bool complete = TRY(batch.run());
  print_summary(options, batch, complete);
  if (!complete) {
    std::fputs("galley batch: interrupted; the same command goes on where this one stopped\n",
               stderr);
    return kExitInterrupted;
  }
  return batch.counts().failed == 0 ? kExitOk : kExitFailed;
}

}  // namespace

int run_batch(int argc, char** argv) {
  BatchOptions options;
  options.engine.sequences = 32;
  options.engine.async_scheduling = "on";
  Command command(
      "batch", "Answers a file of requests into another file; run again, it goes on.",
      "  galley batch requests.jsonl -o answers.jsonl\n"
      "  {\"custom_id\": \"a\", \"prompt\": \"Once upon\", \"max_tokens\": 40}\n"
      "  {\"custom_id\": \"b\", \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"
      "\nA line may set temperature, top_k, top_p, min_p, the penalties, logit_bias, seed,\n"
      "max_tokens, stop and stop_tokens; a request under \"body\" is taken as well. Answers come "
      "in\n"
      "the order of the input. A line that cannot be answered becomes a record with \"error\".\n"
      "\nExit codes: 0 all answered, 1 failed or some lines failed, 64 wrong usage,\n"
      "130 interrupted (answers so far are kept).\n");
  command.argument("input", options.input, "Requests, one JSON object a line; - = standard input")
      .required();
  command.argument("-o,--out", options.output, "Where answers are appended")
      .value_name("FILE")
      .required();
  command.argument("--progress", options.progress, "Progress also when stderr is no terminal");
  command.argument("--json", options.json, "The closing summary as one JSON object on stdout");
  command.setting("-n,--max-tokens", options.output_tokens_max, "Longest answer in tokens")
      .range(1, 1e9)
      .value_name("N");
  command
      .setting("--sequences", options.engine.sequences,
               "Requests that run together; answers do not depend on it")
      .range(1, 1024)
      .value_name("N");
  add_model_settings(command, options.model);
  add_engine_settings(command, options.engine);
  add_sampling_settings(command, options.sampling, options.model.model);
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  listen_for_interrupt();
  const Result<int> code = run(options);
  return code ? *code : command.fail(code.error());
}

}  // namespace galley::tools
