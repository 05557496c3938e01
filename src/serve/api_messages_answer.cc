// Answers of POST /v1/messages: content blocks, streamed or whole.
//
// Input tokens are what the cache did not have, as this API counts; the stream's
// first event knows only the prompt's length, its last one the full account.
#include <utility>

#include "serve/api_answer_parts.h"

namespace galley::serve {
namespace {

Json messages_usage(const AnswerUsage& usage) {
  Json json;
  json["input_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  json["cache_creation_input_tokens"] = 0;
  json["cache_read_input_tokens"] = usage.cached_tokens;
  json["output_tokens"] = usage.completion_tokens;
  return json;
}

std::string_view stop_reason(const AnswerFold& answer) {
  switch (answer.finish().reason) {
    case AnswerFinish::kStop:
    case AnswerFinish::kToolCalls:
      return answer.has_calls() ? "tool_use" : "end_turn";
    case AnswerFinish::kStopText:
      return "stop_sequence";
    case AnswerFinish::kLength:
      return "max_tokens";
    case AnswerFinish::kCancelled:
      return "cancelled";
    case AnswerFinish::kFailed:
      return "failed";
  }
  return "end_turn";
}

Json stop_json(const AnswerFold& answer) {
  Json json;
  json["stop_reason"] = stop_reason(answer);
  json["stop_sequence"] = nullptr;
  if (answer.finish().reason == AnswerFinish::kStopText) {
    json["stop_sequence"] = answer.finish().stop_text;
  }
  return json;
}

// Arguments that spell no object stay visible as what they are: an empty object could be executed.
Json input_json(const std::string& arguments) {
  return arguments_object(arguments).value_or(Json{{"invalid_arguments", arguments}});
}

class MessagesEncoder final : public FoldingEncoder {
 public:
  MessagesEncoder(const ApiRequest& request, AnswerHead answer_head)
      : FoldingEncoder(request, std::move(answer_head), !request.stream) {}

 protected:
  void begin() override {
    AnswerUsage known;
    known.prompt_tokens = head().prompt_tokens;
    Json event = {{"type", "message_start"}};
    event["message"] = message(Json::array());
    event["message"]["stop_reason"] = nullptr;
    event["message"]["stop_sequence"] = nullptr;
    event["message"]["usage"] = messages_usage(known);
    write(event);
  }

  void opened(const AnswerBlock& block, size_t index) override {
    Json event = {{"type", "content_block_start"}, {"index", index}};
    event["content_block"] = block_json(block, "", Json::object(), "");
    write(event);
  }

  void grew(const AnswerBlock& block, size_t index, std::string_view delta) override {
    switch (block.kind) {
      case BlockKind::kReasoning:
        return write_delta(index, Json{{"type", "thinking_delta"}, {"thinking", delta}});
      case BlockKind::kContent:
        return write_delta(index, Json{{"type", "text_delta"}, {"text", delta}});
      case BlockKind::kToolCall:
        return write_delta(index, Json{{"type", "input_json_delta"}, {"partial_json", delta}});
    }
  }

  void closed(const AnswerBlock& block, size_t index) override {
    if (block.kind == BlockKind::kReasoning) {
      write_delta(index, Json{{"type", "signature_delta"}, {"signature", head().id}});
    }
    write(Json{{"type", "content_block_stop"}, {"index", index}});
  }

  void choice_finished() override {}

  void end(const AnswerUsage& usage) override {
    Json event = {{"type", "message_delta"}};
    event["delta"] = stop_json(folds()[0]);
    event["usage"] = messages_usage(usage);
    event["usage"]["galley"] = extra_usage(usage);
    write(event);
    write(Json{{"type", "message_stop"}});
  }

  void broken(const ApiError& error) override {
    append_sse(out(), "error", error_body(error, ApiDialect::kAnthropic, head().id));
  }

  std::string whole(const AnswerUsage& usage) override {
    const AnswerFold& answer = folds()[0];
    Json content = Json::array();
    for (const AnswerBlock& block : answer.blocks()) {
      const bool is_call = block.kind == BlockKind::kToolCall;
      content.push_back(block_json(block, block.text,
                                   is_call ? input_json(block.text) : Json::object(), head().id));
    }
    Json body = message(std::move(content));
    body.update(stop_json(answer));
    body["usage"] = messages_usage(usage);
    body["usage"]["galley"] = extra_usage(usage);
    return json_text(body);
  }

 private:
  Json message(Json content) const {
    Json json;
    json["id"] = "msg_" + head().id;
    json["type"] = "message";
    json["role"] = "assistant";
    json["model"] = head().model;
    json["content"] = std::move(content);
    return json;
  }

  static Json block_json(const AnswerBlock& block, std::string_view text, Json input,
                         std::string_view signature) {
    switch (block.kind) {
      case BlockKind::kReasoning:
        return Json{{"type", "thinking"}, {"thinking", text}, {"signature", signature}};
      case BlockKind::kContent:
        return Json{{"type", "text"}, {"text", text}};
      case BlockKind::kToolCall:
        break;
    }
    Json json = {{"type", "tool_use"}, {"id", block.call_id}, {"name", block.name}};
    json["input"] = std::move(input);
    return json;
  }

  void write(const Json& event) {
    append_sse(out(), event["type"].get_ref<const std::string&>(), json_text(event));
  }

  void write_delta(size_t index, const Json& delta) {
    Json event = {{"type", "content_block_delta"}, {"index", index}};
    event["delta"] = delta;
    write(event);
  }
};

}  // namespace

std::unique_ptr<AnswerEncoder> make_messages_encoder(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<MessagesEncoder>(request, std::move(head));
}

}  // namespace galley::serve
