#include "serve/api_answer_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "base/utf8.h"

namespace galley::serve {
namespace {

Json logprob_json(const AnswerLogprob& token) {
  Json json;
  json["token"] = token_text(token.bytes);
  json["logprob"] = finite_logprob(token.logprob);
  json["bytes"] = Json::array();
  for (const char c : token.bytes) json["bytes"].push_back(static_cast<unsigned char>(c));
  return json;
}

}  // namespace

AnswerBlock& AnswerFold::open(BlockKind kind, BlockListener* listener) {
  close(listener);
  blocks_.emplace_back().kind = kind;
  is_open_ = true;
  return blocks_.back();
}

void AnswerFold::grow(BlockKind kind, std::string_view delta, BlockListener* listener) {
  if (delta.empty()) return;
  if (!is_open_ || blocks_.back().kind != kind) {
    // Arguments outside a call are no part of any call.
    if (kind == BlockKind::kToolCall) return;
    open(kind, listener);
    if (listener != nullptr) listener->opened(blocks_.back(), blocks_.size() - 1);
  }
  if (options_.keep_text) blocks_.back().text += delta;
  if (listener != nullptr) listener->grew(blocks_.back(), blocks_.size() - 1, delta);
}

void AnswerFold::close(BlockListener* listener) {
  if (!is_open_) return;
  is_open_ = false;
  if (listener != nullptr) listener->closed(blocks_.back(), blocks_.size() - 1);
}

void AnswerFold::push(const AnswerEvent& event, BlockListener* listener) {
  if (const auto* finish = std::get_if<FinishEvent>(&event); finish != nullptr && !finished_) {
    finish_ = *finish;
    if (is_open_) blocks_.back().is_cut = is_cut_short(finish_.reason);
    close(listener);
    sealed_ = true;
    finished_ = true;
  }
  if (sealed_) return;
  if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) {
    grow(BlockKind::kReasoning, reasoning->text, listener);
  } else if (const auto* content = std::get_if<ContentDelta>(&event)) {
    grow(BlockKind::kContent, content->text, listener);
  } else if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
    AnswerBlock& block = open(BlockKind::kToolCall, listener);
    block.call_id = begin->id;
    block.name = begin->name;
    if (listener != nullptr) listener->opened(block, blocks_.size() - 1);
  } else if (const auto* arguments = std::get_if<ToolArgumentsDelta>(&event)) {
    grow(BlockKind::kToolCall, arguments->text, listener);
  } else if (std::holds_alternative<ToolCallEnd>(event)) {
    close(listener);
    sealed_ = options_.one_tool_call;
  } else if (const auto* logprobs = std::get_if<LogprobsDelta>(&event)) {
    std::vector<AnswerToken>& tokens = logprobs->reasoning ? reasoning_tokens_ : content_tokens_;
    tokens.insert(tokens.end(), logprobs->tokens.begin(), logprobs->tokens.end());
  }
}

std::string AnswerFold::joined(BlockKind kind) const {
  std::string text;
  for (const AnswerBlock& block : blocks_) {
    if (block.kind == kind) text += block.text;
  }
  return text;
}

bool AnswerFold::has_calls() const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [](const AnswerBlock& block) { return block.kind == BlockKind::kToolCall; });
}

std::vector<AnswerToken> AnswerFold::take_tokens(BlockKind kind) {
  return std::exchange(kind == BlockKind::kReasoning ? reasoning_tokens_ : content_tokens_, {});
}

FoldingEncoder::FoldingEncoder(const ApiRequest& request, AnswerHead head, bool keep_text)
    : head_(std::move(head)),
      dialect_(dialect_of(request.api)),
      stream_(request.stream),
      folds_(static_cast<size_t>(request.choice_count()),
             AnswerFold({request.one_tool_call, keep_text})) {}

void FoldingEncoder::start(std::string& out) {
  out_ = &out;
  if (stream_) begin();
}

void FoldingEncoder::event(int32_t choice, const AnswerEvent& event, std::string& out) {
  CHECK(choice >= 0 && static_cast<size_t>(choice) < folds_.size());
  choice_ = choice;
  out_ = &out;
  if (ended_ || fold().finished()) return;
  fold().push(event, stream_ ? this : nullptr);
  if (stream_ && fold().finished()) choice_finished();
}

void FoldingEncoder::finish(const AnswerUsage& usage, std::string& out) {
  if (std::exchange(ended_, true)) return;
  out_ = &out;
  if (stream_) {
    end(usage);
  } else {
    out += whole(usage);
  }
}

void FoldingEncoder::fail(const ApiError& error, std::string& out) {
  if (std::exchange(ended_, true)) return;
  out_ = &out;
  if (stream_) {
    broken(error);
  } else {
    out += error_body(error, dialect_, head_.id);
  }
}

std::string token_text(std::string_view bytes) {
  if (is_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) {
    char code[5];
    std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(c));
    text += code;
  }
  return text;
}

double finite_logprob(float logprob) {
  constexpr double kLeast = -9999.0;
  return std::isfinite(logprob) ? std::max(static_cast<double>(logprob), kLeast) : kLeast;
}

Json token_json(const AnswerToken& token) {
  Json json = logprob_json(token.chosen);
  json["top_logprobs"] = Json::array();
  for (const AnswerLogprob& other : token.top) json["top_logprobs"].push_back(logprob_json(other));
  return json;
}

Json tokens_json(const std::vector<AnswerToken>& tokens) {
  Json list = Json::array();
  for (const AnswerToken& token : tokens) list.push_back(token_json(token));
  return list;
}

Json extra_usage(const AnswerUsage& usage) {
  Json json;
  json["replayed_tokens"] = usage.replayed_tokens;
  json["drafted_tokens"] = usage.drafted_tokens;
  json["accepted_tokens"] = usage.accepted_tokens;
  json["cache_miss_reason"] = nullptr;
  if (!usage.miss_reason.empty()) json["cache_miss_reason"] = usage.miss_reason;
  return json;
}

Json openai_usage(const AnswerUsage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  json["prompt_cache_hit_tokens"] = usage.cached_tokens;
  json["prompt_cache_miss_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  json["galley"] = extra_usage(usage);
  return json;
}

std::optional<Json> arguments_object(const std::string& arguments) {
  // The bounded reader first: the library writes deep values by recursion.
  if (!JsonDocument::parse(arguments)) return std::nullopt;
  Json json = Json::parse(arguments, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

bool is_cut_short(AnswerFinish finish) {
  return finish == AnswerFinish::kLength || finish == AnswerFinish::kCancelled ||
         finish == AnswerFinish::kFailed;
}

std::string_view openai_finish(AnswerFinish finish, bool has_calls) {
  switch (finish) {
    case AnswerFinish::kStop:
    case AnswerFinish::kToolCalls:
      return has_calls ? "tool_calls" : "stop";
    case AnswerFinish::kStopText:
      return "stop";
    case AnswerFinish::kLength:
      return "length";
    case AnswerFinish::kCancelled:
      return "cancelled";
    case AnswerFinish::kFailed:
      return "failed";
  }
  return "stop";
}

}  // namespace galley::serve
