// Answers of POST /v1/chat/completions: chunks, or one chat.completion.
//
// The first chunk of a choice carries the role, the last an empty delta and the
// finish reason; every other has one delta.
#include <utility>

#include "serve/api_openai_answer.h"

namespace galley::serve {
namespace {

constexpr OpenAiNames kNames = {"chatcmpl-", "chat.completion", "chat.completion.chunk"};

class ChatEncoder final : public OpenAiEncoder {
 public:
  ChatEncoder(const ApiRequest& request, AnswerHead answer_head)
      : OpenAiEncoder(request, std::move(answer_head), kNames),
        calls_(static_cast<size_t>(request.choice_count())) {}

 protected:
  void begin_choices() override {
    for (size_t i = 0; i < folds().size(); ++i) {
      write_chunk(i, "delta", R"({"role":"assistant","content":""})");
    }
  }

  void opened(const AnswerBlock& block, size_t /*index*/) override {
    if (block.kind != BlockKind::kToolCall) return;
    Json call;
    call["index"] = calls_[at()]++;
    call["id"] = block.call_id;
    call["type"] = "function";
    call["function"] = {{"name", block.name}, {"arguments", ""}};
    write_call(std::move(call));
  }

  void grew(const AnswerBlock& block, size_t /*index*/, std::string_view delta) override {
    if (block.kind != BlockKind::kToolCall) {
      const bool reasoning = block.kind == BlockKind::kReasoning;
      return write_delta(Json{{reasoning ? "reasoning_content" : "content", delta}});
    }
    Json call;
    call["index"] = calls_[at()] - 1;
    call["function"] = {{"arguments", delta}};
    write_call(std::move(call));
  }

  void closed(const AnswerBlock& /*block*/, size_t /*index*/) override {}

  void choice_finished() override {
    write_chunk(at(), "delta", "{}", openai_finish(fold().finish().reason, fold().has_calls()));
  }

  Json whole_choice(size_t index) override {
    const AnswerFold& answer = folds()[index];
    Json json;
    json["role"] = "assistant";
    json["content"] = answer.joined(BlockKind::kContent);
    if (answer.has_calls() && json["content"] == "") json["content"] = nullptr;
    json["refusal"] = nullptr;
    const std::string reasoning = answer.joined(BlockKind::kReasoning);
    if (!reasoning.empty()) json["reasoning_content"] = reasoning;
    if (answer.has_calls()) json["tool_calls"] = calls_json(answer);
    return Json{{"message", std::move(json)}};
  }

  Json logprobs_json(size_t index) override {
    Json json;
    json["content"] = tokens_json(folds()[index].take_tokens(BlockKind::kContent));
    json["refusal"] = nullptr;
    const auto reasoning = folds()[index].take_tokens(BlockKind::kReasoning);
    if (!reasoning.empty()) json["reasoning_content"] = tokens_json(reasoning);
    return json;
  }

 private:
  size_t at() const { return static_cast<size_t>(choice()); }

  static Json calls_json(const AnswerFold& answer) {
    Json calls = Json::array();
    for (const AnswerBlock& block : answer.blocks()) {
      if (block.kind != BlockKind::kToolCall) continue;
      Json call;
      call["id"] = block.call_id;
      call["type"] = "function";
      call["function"] = {{"name", block.name}, {"arguments", block.text}};
      calls.push_back(std::move(call));
    }
    return calls;
  }

  void write_delta(const Json& delta) { write_chunk(at(), "delta", json_text(delta)); }

  void write_call(Json call) { write_delta(Json{{"tool_calls", Json::array({std::move(call)})}}); }

  std::vector<int32_t> calls_;  // of each choice: how many were opened
};

}  // namespace

std::unique_ptr<AnswerEncoder> make_chat_encoder(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<ChatEncoder>(request, std::move(head));
}

}  // namespace galley::serve
