// galley run: one answer, streamed.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>

#include "base/line_reader.h"
#include "tools/answer_message.h"
#include "tools/answer_text.h"
#include "tools/exit_code.h"
#include "tools/interrupt.h"
#include "tools/loaded_model.h"
#include "tools/progress.h"
#include "tools/prompt_input.h"
#include "tools/sampling_settings.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMessageBytesMax = size_t{1} << 20;

struct RunOptions {
  PromptInput input;
  bool raw = false;
  bool json = false;
  bool quiet = false;
  bool ignore_end = false;
  std::vector<std::string> stops;
  std::vector<std::string> logit_bias;
  int32_t logprobs = -1;
  int32_t output_tokens_max = 512;
  ModelSettings model;
  EngineSettings engine;
  engine::SamplingOptions sampling;

  // --chat on a terminal with nothing to answer yet.
  bool converses() const {
    return input.chat && input.empty() && !json && ::isatty(STDIN_FILENO) == 1;
  }
};

struct ReportedToken {
  engine::TokenLogprob chosen;
  std::vector<engine::TokenLogprob> top;
};

struct RunOutcome {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<ReportedToken> logprobs;  // one a token, if asked for
  engine::FinishReason finish = engine::FinishReason::kNone;
  int64_t prompt_tokens = 0;
  double first_token_s = 0;  // from the start of prefill
  double decode_s = 0;       // from the first token to the last
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Runs the one sequence to its end, printing as it goes unless --json collects.
Result<RunOutcome> generate(const RunOptions& options, LoadedModel& loaded,
                            std::vector<int32_t> prompt) {
  engine::Generator& generator = loaded.generator();
  RunOutcome outcome;
  outcome.prompt_tokens = static_cast<int64_t>(prompt.size());
  engine::GenerateRequest request;
  request.prompt = std::move(prompt);
  request.sampling = options.sampling;
  if (!options.ignore_end) request.stop_tokens = {loaded.codec().end_id()};
  const int64_t room = generator.options().positions_max - outcome.prompt_tokens;
  request.output_tokens_max = static_cast<int32_t>(
      std::max<int64_t>(1, std::min<int64_t>(options.output_tokens_max, room)));
  TRY(generator.submit(std::move(request)));

  AnswerText decoder(loaded.tokenizer(), loaded.codec(), options.raw, options.stops);
  const auto show = [&](const std::string& text) {
    outcome.text += text;
    if (options.json || text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const Clock::time_point begin = Clock::now();
  Clock::time_point first = begin;
  while (!generator.idle()) {
    if (interrupted()) generator.cancel(engine::SequenceId{});
    const engine::StepOutcome step = TRY(generator.step());
    for (const engine::TokenEvent& event : step.events) {
      if (decoder.stopped()) continue;  // the cancellation of what a stop sequence ended
      outcome.finish = event.finish;
      if (!event.has_token) continue;
      if (outcome.ids.empty()) first = Clock::now();
      outcome.ids.push_back(event.token);
      if (options.logprobs >= 0) {
        outcome.logprobs.push_back(
            {{event.token, event.logprob}, {event.top_logprobs.begin(), event.top_logprobs.end()}});
      }
      if (event.finish != engine::FinishReason::kStop || options.raw)
        show(decoder.push(event.token));
      if (!decoder.stopped()) continue;
      outcome.finish = engine::FinishReason::kStop;
      if (event.finish == engine::FinishReason::kNone) generator.cancel(event.id);
    }
  }
  show(decoder.finish());
  outcome.first_token_s = std::chrono::duration<double>(first - begin).count();
  outcome.decode_s = seconds_since(first);
  return outcome;
}

double rate(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

void print_summary(const RunOutcome& outcome) {
  const int64_t decoded = std::max<int64_t>(static_cast<int64_t>(outcome.ids.size()) - 1, 0);
  std::fprintf(
      stderr,
      "prompt %s tokens, prefill %s tokens/s, first token after %.0f ms; answer %s "
      "tokens (%s), decode %s tokens/s; peak memory %s\n",
      format_count(outcome.prompt_tokens).c_str(),
      format_count(std::llround(rate(outcome.prompt_tokens, outcome.first_token_s))).c_str(),
      1000 * outcome.first_token_s, format_count(static_cast<int64_t>(outcome.ids.size())).c_str(),
      engine::finish_name(outcome.finish),
      format_count(std::llround(rate(decoded, outcome.decode_s))).c_str(),
      format_bytes(peak_memory_bytes()).c_str());
}

void print_json(const RunOptions& options, const RunOutcome& outcome, const LoadedModel& loaded,
                const serve::Prompt& prompt) {
  const int64_t decoded = std::max<int64_t>(static_cast<int64_t>(outcome.ids.size()) - 1, 0);
  nlohmann::ordered_json json;
  json["text"] = outcome.text;
  if (options.input.is_conversation()) {
    json["message"] = answer_message(loaded.tokenizer(), loaded.codec(), prompt, outcome.ids);
  }
  json["ids"] = outcome.ids;
  for (const ReportedToken& token : outcome.logprobs) {
    nlohmann::ordered_json one = {{"id", token.chosen.token}, {"logprob", token.chosen.logprob}};
    for (const engine::TokenLogprob& other : token.top) {
      one["top"].push_back({{"id", other.token}, {"logprob", other.logprob}});
    }
    json["logprobs"].push_back(std::move(one));
  }
  json["finish_reason"] = engine::finish_name(outcome.finish);
  json["usage"] = {{"prompt_tokens", outcome.prompt_tokens},
                   {"completion_tokens", outcome.ids.size()}};
  json["prefill_tokens_per_s"] = rate(outcome.prompt_tokens, outcome.first_token_s);
  json["decode_tokens_per_s"] = rate(decoded, outcome.decode_s);
  json["first_token_ms"] = 1000 * outcome.first_token_s;
  json["peak_memory_bytes"] = peak_memory_bytes();
  json["model"] = loaded.directory();
  json["backend"] = loaded.ops().name();
  json["threads"] = loaded.thread_count();
  std::puts(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

// A conversation on the terminal, until end of input. Ctrl-C stops an answer, not the talk.
Result<int> converse(const RunOptions& options, LoadedModel& loaded) {
  std::fputs("Write a message; an empty line or Ctrl-D ends, Ctrl-C stops an answer.\n", stderr);
  serve::Conversation conversation;
  const auto say = [&](serve::Role role, std::string text) {
    conversation.messages.push_back(serve::text_message(role, std::move(text)));
  };
  if (!options.input.system.empty()) say(serve::Role::kSystem, options.input.system);
  LineReader reader = TRY(LineReader::open("-", kMessageBytesMax));
  while (true) {
    std::fputs("> ", stdout);
    std::fflush(stdout);
    if (!wait_readable(STDIN_FILENO)) {
      std::fputc('\n', stdout);
      return kExitInterrupted;
    }
    const Result<std::optional<Line>> line = reader.next();
    if (!line) return line.error();
    if (!line->has_value() || (*line)->text.empty()) return kExitOk;
    say(serve::Role::kUser, std::string((*line)->text));
    serve::Prompt prompt = TRY(loaded.codec().encode(conversation));
    const RunOutcome outcome = TRY(generate(options, loaded, std::move(prompt.ids)));
    std::fputc('\n', stdout);
    if (!options.quiet) print_summary(outcome);
    say(serve::Role::kAssistant, outcome.text);
    listen_for_interrupt();
  }
}

void declare(Command& command, RunOptions& options) {
  add_prompt_arguments(command, options.input);
  command.argument("--raw", options.raw, "Show control tokens in the answer");
  command.argument("--ignore-end", options.ignore_end, "Go on after the end token");
  command.argument("-q,--quiet", options.quiet, "No summary line on stderr");
  command.argument("--stop", options.stops, "End before this text; may repeat").value_name("TEXT");
  command
      .argument("--logit-bias", options.logit_bias,
                "Added to a token's logit, e.g. 17=-5; may repeat")
      .value_name("ID=X");
  command
      .argument("--logprobs", options.logprobs,
                "With --json: log-probabilities, and those of the N best tokens")
      .range(0, engine::kTopLogprobsMax)
      .value_name("N");
  command.argument("--json", options.json, "One JSON object instead of text and summary");
  command.setting("-n,--max-tokens", options.output_tokens_max, "Longest answer in tokens")
      .range(1, 1e9)
      .value_name("N");
  add_model_settings(command, options.model);
  add_engine_settings(command, options.engine);
  add_sampling_settings(command, options.sampling, options.model.model);
}

// On a terminal a text reads whole: the prompt in grey, then what goes on from it.
void echo_prompt(const RunOptions& options, const LoadedModel& loaded,
                 std::span<const int32_t> prompt) {
  if (options.json || options.input.is_conversation() || ::isatty(STDOUT_FILENO) != 1) return;
  const bool colour = std::getenv("NO_COLOR") == nullptr;
  AnswerText text(loaded.tokenizer(), loaded.codec(), options.raw);
  std::string shown;
  for (const int32_t id : prompt) shown += text.push(id);
  shown += text.finish();
  std::printf("%s%s%s", colour ? "\x1b[2m" : "", shown.c_str(), colour ? "\x1b[0m" : "");
  std::fflush(stdout);
}

Result<int> run(const RunOptions& options) {
  std::unique_ptr<LoadedModel> loaded = TRY(LoadedModel::open(options.model));
  TRY(loaded->start_engine(options.engine));
  if (options.converses()) return converse(options, *loaded);
  const serve::Prompt prompt = TRY(encode_prompt(options.input, loaded->codec()));
  echo_prompt(options, *loaded, prompt.ids);
  const RunOutcome outcome = TRY(generate(options, *loaded, prompt.ids));
  if (options.json) {
    print_json(options, outcome, *loaded, prompt);
  } else {
    std::fputc('\n', stdout);
    std::fflush(stdout);
    if (!options.quiet) print_summary(outcome);
  }
  if (outcome.finish == engine::FinishReason::kFailed) {
    return Error{ErrorCode::kCorrupt, "the model gave logits that are no numbers after " +
                                          std::to_string(outcome.ids.size()) +
                                          " tokens; check the checkpoint with galley doctor"};
  }
  return outcome.finish == engine::FinishReason::kCancelled ? kExitInterrupted : kExitOk;
}

}  // namespace

int run_run(int argc, char** argv) {
  RunOptions options;
  Command command("run", "Generates from a prompt and streams the answer.",
                  "  galley run \"Once upon a time\"\n"
                  "  galley run --chat \"What is the capital of France?\"\n"
                  "  galley run --chat                     a conversation on the terminal\n"
                  "  galley run --ids 0,17,254 -t 0 -n 20 --json\n"
                  "  cat story.txt | galley run -m /models/DeepSeek-V4.1-Flash -\n"
                  "\nExit codes: 0 ok, 1 failed, 64 wrong usage, 130 interrupted (the text so far "
                  "is printed).\n");
  declare(command, options);
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  const std::string wrong = options.input.problem();
  if (!wrong.empty() && !options.converses()) return command.usage(wrong);
  for (const std::string& text : options.logit_bias) {
    const auto bias = parse_logit_bias(text);
    if (!bias) return command.usage(bias.error().message);
    options.sampling.logit_bias.push_back(*bias);
  }
  for (const std::string& stop : options.stops) {
    if (stop.empty() || stop.size() > serve::kStopTextBytesMax ||
        options.stops.size() > serve::kStopTextsMax) {
      return command.usage("--stop takes up to 16 texts of 1 to 256 bytes");
    }
  }
  options.sampling.logprob = options.logprobs >= 0;
  options.sampling.top_logprobs = std::max(options.logprobs, 0);
  listen_for_interrupt();
  const Result<int> code = run(options);
  return code ? *code : command.fail(code.error());
}

}  // namespace galley::tools
