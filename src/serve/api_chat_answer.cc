// Answers of POST /v1/chat/completions: chunks, or one chat.completion.
//
// Every chunk has the same members; the first of a choice carries the role, the
// last an empty delta and the finish reason; usage comes in one more chunk
// without choices, and [DONE] ends the stream.
#include <utility>

#include "serve/api_answer_parts.h"

namespace galley::serve {
namespace {

class ChatEncoder final : public FoldingEncoder {
 public:
  ChatEncoder(const ApiRequest& request, AnswerHead answer_head)
      : FoldingEncoder(request, std::move(answer_head), !request.stream),
        logprobs_(request.sampling.logprob),
        include_usage_(request.include_usage),
        calls_(static_cast<size_t>(request.choice_count())) {}

 protected:
  void begin() override {
    chunk_head_ = json_text(object("chat.completion.chunk"));
    chunk_head_.back() = ',';  // the object goes on
    for (int32_t i = 0; i < static_cast<int32_t>(folds().size()); ++i) {
      write(i, R"({"role":"assistant","content":""})", "null", "");
    }
  }

  void opened(const AnswerBlock& block, size_t /*index*/) override {
    if (block.kind != BlockKind::kToolCall) return;
    const int32_t index = calls_[static_cast<size_t>(choice())]++;
    Json call;
    call["index"] = index;
    call["id"] = block.call_id;
    call["type"] = "function";
    call["function"] = {{"name", block.name}, {"arguments", ""}};
    write_delta(Json{{"tool_calls", Json::array({std::move(call)})}});
  }

  void grew(const AnswerBlock& block, size_t /*index*/, std::string_view delta) override {
    if (block.kind != BlockKind::kToolCall) {
      const bool reasoning = block.kind == BlockKind::kReasoning;
      write_delta(Json{{reasoning ? "reasoning_content" : "content", delta}});
      return;
    }
    Json call;
    call["index"] = calls_[static_cast<size_t>(choice())] - 1;
    call["function"] = {{"arguments", delta}};
    write_delta(Json{{"tool_calls", Json::array({std::move(call)})}});
  }

  void closed(const AnswerBlock& /*block*/, size_t /*index*/) override {}

  void choice_finished() override {
    write(choice(), "{}", tokens_text(), openai_finish(fold().finish().reason, fold().has_calls()));
  }

  void end(const AnswerUsage& usage) override {
    if (include_usage_) {
      append_sse(out(), "",
                 chunk_head_ + R"("choices":[],"usage":)" + json_text(openai_usage(usage)) + "}");
    }
    append_sse(out(), "", "[DONE]");
  }

  void broken(const ApiError& error) override {
    append_sse(out(), "", error_body(error, ApiDialect::kOpenAi, head().id));
    append_sse(out(), "", "[DONE]");
  }

  std::string whole(const AnswerUsage& usage) override {
    Json body = object("chat.completion");
    body["choices"] = Json::array();
    for (size_t i = 0; i < folds().size(); ++i) {
      AnswerFold& answer = folds()[i];
      Json choice_json;
      choice_json["index"] = i;
      choice_json["message"] = message(answer);
      choice_json["logprobs"] = nullptr;
      if (logprobs_) choice_json["logprobs"] = logprobs_json(answer);
      choice_json["finish_reason"] = openai_finish(answer.finish().reason, answer.has_calls());
      body["choices"].push_back(std::move(choice_json));
    }
    body["usage"] = openai_usage(usage);
    return json_text(body);
  }

 private:
  Json object(std::string_view kind) const {
    Json json;
    json["id"] = "chatcmpl-" + head().id;
    json["object"] = kind;
    json["created"] = head().created;
    json["model"] = head().model;
    json["system_fingerprint"] = nullptr;
    if (!head().fingerprint.empty()) json["system_fingerprint"] = head().fingerprint;
    return json;
  }

  static Json message(const AnswerFold& answer) {
    Json json;
    json["role"] = "assistant";
    json["content"] = answer.joined(BlockKind::kContent);
    if (answer.has_calls() && json["content"] == "") json["content"] = nullptr;
    json["refusal"] = nullptr;
    const std::string reasoning = answer.joined(BlockKind::kReasoning);
    if (!reasoning.empty()) json["reasoning_content"] = reasoning;
    if (!answer.has_calls()) return json;
    json["tool_calls"] = Json::array();
    for (const AnswerBlock& block : answer.blocks()) {
      if (block.kind != BlockKind::kToolCall) continue;
      Json call;
      call["id"] = block.call_id;
      call["type"] = "function";
      call["function"] = {{"name", block.name}, {"arguments", block.text}};
      json["tool_calls"].push_back(std::move(call));
    }
    return json;
  }

  static Json logprobs_json(AnswerFold& answer) {
    Json json;
    json["content"] = tokens_json(answer.take_tokens(BlockKind::kContent));
    json["refusal"] = nullptr;
    const auto reasoning = answer.take_tokens(BlockKind::kReasoning);
    if (!reasoning.empty()) json["reasoning_content"] = tokens_json(reasoning);
    return json;
  }

  // What is there of log-probabilities rides on the next chunk.
  std::string tokens_text() { return logprobs_ ? json_text(logprobs_json(fold())) : "null"; }

  void write_delta(const Json& delta) { write(choice(), json_text(delta), tokens_text(), ""); }

  // Everything but the delta is text that is ready: this runs for every token.
  void write(int32_t index, std::string_view delta, std::string_view logprobs,
             std::string_view finish) {
    std::string& line = out();
    line.append("data: ").append(chunk_head_).append(R"("choices":[{"index":)");
    line.append(std::to_string(index)).append(R"(,"delta":)").append(delta);
    line.append(R"(,"logprobs":)").append(logprobs).append(R"(,"finish_reason":)");
    if (finish.empty()) {
      line.append("null");
    } else {
      line.append("\"").append(finish).append("\"");
    }
    line.append("}]").append(include_usage_ ? R"(,"usage":null})" : "}").append("\n\n");
  }

  bool logprobs_;
  bool include_usage_;
  std::vector<int32_t> calls_;  // of each choice: how many were opened
  std::string chunk_head_;
};

}  // namespace

std::unique_ptr<AnswerEncoder> make_chat_encoder(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<ChatEncoder>(request, std::move(head));
}

}  // namespace galley::serve
