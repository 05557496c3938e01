// Answers of POST /v1/responses: output items, as semantic events or whole.
//
// Every event carries a sequence number; the last one holds the whole response,
// which is the same value that a request without streaming gets.
#include <algorithm>
#include <utility>

#include "serve/api_answer_parts.h"

namespace galley::serve {
namespace {

Json responses_usage(const AnswerUsage& usage) {
  Json json;
  json["input_tokens"] = usage.prompt_tokens;
  json["input_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  json["output_tokens"] = usage.completion_tokens;
  json["output_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["galley"] = extra_usage(usage);
  return json;
}

class ResponsesEncoder final : public FoldingEncoder {
 public:
  ResponsesEncoder(const ApiRequest& request, AnswerHead answer_head)
      : FoldingEncoder(request, std::move(answer_head), true),
        settings_(request.settings_json.empty() ? Json::object()
                                                : Json::parse(request.settings_json)),
        text_tools_(request.text_tools),
        tool_namespaces_(request.tool_namespaces) {}

 protected:
  void begin() override {
    for (const char* type : {"response.created", "response.in_progress"}) {
      Json event = {{"type", type}};
      event["response"] = response("in_progress", Json::array());
      write(event);
    }
  }

  void opened(const AnswerBlock& block, size_t index) override {
    Json event = {{"type", "response.output_item.added"}, {"output_index", index}};
    event["item"] = item(block, index, "in_progress");
    if (block.kind != BlockKind::kToolCall) event["item"]["content"] = Json::array();
    write(event);
    if (block.kind == BlockKind::kToolCall) return;
    event = place("response.content_part.added", block, index);
    event["part"] = part(block, "");
    write(event);
  }

  void grew(const AnswerBlock& block, size_t index, std::string_view delta) override {
    // A plain text inside JSON is only known when the JSON is whole.
    if (is_text_call(block)) return;
    Json event = place(std::string(stem(block)) + ".delta", block, index);
    event["delta"] = delta;
    if (block.kind == BlockKind::kContent) event["logprobs"] = take_logprobs();
    write(event);
  }

  void closed(const AnswerBlock& block, size_t index) override {
    Json event;
    if (is_text_call(block)) {
      event = place(std::string(stem(block)) + ".delta", block, index);
      event["delta"] = input_text(block.text);
      write(event);
    }
    event = place(std::string(stem(block)) + ".done", block, index);
    if (is_text_call(block)) {
      event["input"] = input_text(block.text);
    } else if (block.kind == BlockKind::kToolCall) {
      event["name"] = block.name;
      event["arguments"] = block.text;
    } else {
      event["text"] = block.text;
      if (block.kind == BlockKind::kContent) event["logprobs"] = logprobs_of(index);
    }
    write(event);
    if (block.kind != BlockKind::kToolCall) {
      event = place("response.content_part.done", block, index);
      event["part"] = part(block, block.text, logprobs_of(index));
      write(event);
    }
    event = {{"type", "response.output_item.done"}, {"output_index", index}};
    event["item"] = item(block, index, done(block));
    write(event);
  }

  void choice_finished() override {}

  void end(const AnswerUsage& usage) override {
    const bool complete = status() == "completed";
    Json event = {{"type", complete ? "response.completed" : "response.incomplete"}};
    event["response"] = final_response(usage);
    write(event);
  }

  void broken(const ApiError& error) override {
    Json event = {{"type", "error"}, {"code", fault_code(error.fault)}};
    event["message"] = error.message;
    event["param"] = nullptr;
    if (!error.param.empty()) event["param"] = error.param;
    write(event);
    event = {{"type", "response.failed"}};
    event["response"] = response("failed", items());
    event["response"]["error"] = {{"code", "server_error"}, {"message", error.message}};
    write(event);
  }

  std::string whole(const AnswerUsage& usage) override { return json_text(final_response(usage)); }

 private:
  std::string_view status() {
    return is_cut_short(folds()[0].finish().reason) ? "incomplete" : "completed";
  }

  Json response(std::string_view state, Json output) const {
    Json json;
    json["id"] = "resp_" + head().id;
    json["object"] = "response";
    json["created_at"] = head().created;
    json["status"] = state;
    json["error"] = nullptr;
    json["incomplete_details"] = nullptr;
    json["model"] = head().model;
    json["output"] = std::move(output);
    json.update(settings_);
    json["usage"] = nullptr;
    return json;
  }

  Json final_response(const AnswerUsage& usage) {
    take_logprobs();
    Json json = response(status(), items());
    if (status() != "completed") {
      const bool length = folds()[0].finish().reason == AnswerFinish::kLength;
      json["incomplete_details"] = {{"reason", length ? "max_output_tokens" : "cancelled"}};
    }
    json["usage"] = responses_usage(usage);
    return json;
  }

  Json items() {
    Json list = Json::array();
    const std::vector<AnswerBlock>& blocks = folds()[0].blocks();
    for (size_t i = 0; i < blocks.size(); ++i) list.push_back(item(blocks[i], i, done(blocks[i])));
    return list;
  }

  static std::string_view done(const AnswerBlock& block) {
    return block.is_cut ? "incomplete" : "completed";
  }

  std::string item_id(const AnswerBlock& block, size_t index) const {
    const char* prefix = block.kind == BlockKind::kReasoning ? "rs_"
                         : block.kind == BlockKind::kContent ? "msg_"
                         : is_text_call(block)               ? "ctc_"
                                                             : "fc_";
    return prefix + head().id + "_" + std::to_string(index);
  }

  bool is_text_call(const AnswerBlock& block) const {
    return block.kind == BlockKind::kToolCall &&
           std::find(text_tools_.begin(), text_tools_.end(), block.name) != text_tools_.end();
  }

  // What stands in the one argument; arguments that are cut off or strange as they are.
  static std::string input_text(const std::string& arguments) {
    const std::optional<Json> json = arguments_object(arguments);
    const bool is_text = json && json->contains("input") && (*json)["input"].is_string();
    return is_text ? (*json)["input"].get<std::string>() : arguments;
  }

  // {"namespace", "name"} where the caller gave them apart.
  void put_name(const std::string& name, Json& json) const {
    const size_t colons = name.find("::");
    const std::string space = name.substr(0, colons == std::string::npos ? 0 : colons);
    const bool apart = std::find(tool_namespaces_.begin(), tool_namespaces_.end(), space) !=
                       tool_namespaces_.end();
    if (apart) json["namespace"] = space;
    json["name"] = apart ? name.substr(colons + 2) : name;
  }

  std::string_view stem(const AnswerBlock& block) const {
    switch (block.kind) {
      case BlockKind::kReasoning:
        return "response.reasoning_text";
      case BlockKind::kContent:
        return "response.output_text";
      case BlockKind::kToolCall:
        return is_text_call(block) ? "response.custom_tool_call_input"
                                   : "response.function_call_arguments";
    }
    return "";
  }

  static Json part(const AnswerBlock& block, std::string_view text, Json logprobs = Json::array()) {
    if (block.kind == BlockKind::kReasoning) {
      return Json{{"type", "reasoning_text"}, {"text", text}};
    }
    Json json = {{"type", "output_text"}, {"text", text}};
    json["annotations"] = Json::array();
    json["logprobs"] = std::move(logprobs);
    return json;
  }

  Json item(const AnswerBlock& block, size_t index, std::string_view state) const {
    Json json;
    json["id"] = item_id(block, index);
    switch (block.kind) {
      case BlockKind::kReasoning:
        json["type"] = "reasoning";
        json["summary"] = Json::array();
        json["content"] = Json::array({part(block, block.text)});
        break;
      case BlockKind::kContent:
        json["type"] = "message";
        json["role"] = "assistant";
        json["content"] = Json::array({part(block, block.text, logprobs_of(index))});
        break;
      case BlockKind::kToolCall:
        json["type"] = is_text_call(block) ? "custom_tool_call" : "function_call";
        json["call_id"] = block.call_id;
        put_name(block.name, json);
        if (is_text_call(block)) {
          json["input"] = input_text(block.text);
        } else {
          json["arguments"] = block.text;
        }
        break;
    }
    json["status"] = state;
    return json;
  }

  // An event about one item; texts also name their part.
  Json place(std::string type, const AnswerBlock& block, size_t index) const {
    Json event;
    event["type"] = std::move(type);
    event["item_id"] = item_id(block, index);
    event["output_index"] = index;
    if (block.kind != BlockKind::kToolCall) event["content_index"] = 0;
    return event;
  }

  // What came since the last time; also remembered.
  Json take_logprobs() {
    Json fresh = tokens_json(folds()[0].take_tokens(BlockKind::kContent));
    logprobs_.insert(logprobs_.end(), fresh.begin(), fresh.end());
    return fresh;
  }

  // Tokens do not say which text they belong to: the first text of the answer has them all.
  Json logprobs_of(size_t index) const {
    const std::vector<AnswerBlock>& blocks = folds()[0].blocks();
    const auto first = std::find_if(blocks.begin(), blocks.end(), [](const AnswerBlock& block) {
      return block.kind == BlockKind::kContent;
    });
    return first == blocks.begin() + static_cast<ptrdiff_t>(index) ? logprobs_ : Json::array();
  }

  void write(Json& event) {
    event["sequence_number"] = sequence_++;
    append_sse(out(), event["type"].get_ref<const std::string&>(), json_text(event));
  }

  Json settings_;
  std::vector<std::string> text_tools_;
  std::vector<std::string> tool_namespaces_;
  Json logprobs_ = Json::array();
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<AnswerEncoder> make_responses_encoder(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<ResponsesEncoder>(request, std::move(head));
}

}  // namespace galley::serve
