#include "serve/api_openai_answer.h"

#include <utility>

namespace galley::serve {

OpenAiEncoder::OpenAiEncoder(const ApiRequest& request, AnswerHead answer_head,
                             const OpenAiNames& names)
    : FoldingEncoder(request, std::move(answer_head), !request.stream),
      names_(names),
      logprobs_(request.sampling.logprob),
      include_usage_(request.include_usage) {}

Json OpenAiEncoder::object(std::string_view kind) const {
  Json json;
  json["id"] = std::string(names_.id_prefix) + head().id;
  json["object"] = kind;
  json["created"] = head().created;
  json["model"] = head().model;
  json["system_fingerprint"] = nullptr;
  if (!head().fingerprint.empty()) json["system_fingerprint"] = head().fingerprint;
  return json;
}

void OpenAiEncoder::begin() {
  chunk_head_ = json_text(object(names_.chunk));
  chunk_head_.back() = ',';  // the object goes on
  begin_choices();
}

void OpenAiEncoder::write_chunk(size_t index, std::string_view key, std::string_view member,
                                std::string_view finish) {
  std::string& line = out();
  line.append("data: ").append(chunk_head_).append(R"("choices":[{"index":)");
  line.append(std::to_string(index)).append(",\"").append(key).append("\":").append(member);
  line.append(R"(,"logprobs":)");
  line.append(logprobs_ ? json_text(logprobs_json(index)) : "null");
  line.append(R"(,"finish_reason":)");
  if (finish.empty()) {
    line.append("null");
  } else {
    line.append("\"").append(finish).append("\"");
  }
  line.append("}]").append(include_usage_ ? R"(,"usage":null})" : "}").append("\n\n");
}

void OpenAiEncoder::end(const AnswerUsage& usage) {
  if (include_usage_) {
    append_sse(out(), "",
               chunk_head_ + R"("choices":[],"usage":)" + json_text(openai_usage(usage)) + "}");
  }
  append_sse(out(), "", "[DONE]");
}

void OpenAiEncoder::broken(const ApiError& error) {
  append_sse(out(), "", error_body(error, ApiDialect::kOpenAi, head().id));
  append_sse(out(), "", "[DONE]");
}

std::string OpenAiEncoder::whole(const AnswerUsage& usage) {
  Json body = object(names_.object);
  body["choices"] = Json::array();
  for (size_t i = 0; i < folds().size(); ++i) {
    Json choice_json;
    choice_json["index"] = i;
    choice_json.update(whole_choice(i));
    choice_json["logprobs"] = logprobs_ ? logprobs_json(i) : Json(nullptr);
    choice_json["finish_reason"] =
        openai_finish(folds()[i].finish().reason, folds()[i].has_calls());
    body["choices"].push_back(std::move(choice_json));
  }
  body["usage"] = openai_usage(usage);
  return json_text(body);
}

}  // namespace galley::serve
