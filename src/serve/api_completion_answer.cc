// Answers of POST /v1/completions: text_completion, in chunks or whole.
//
// There is no reasoning and there are no calls here: all text is the text.
#include <algorithm>
#include <utility>

#include "serve/api_answer_parts.h"

namespace galley::serve {
namespace {

int64_t code_points(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

class CompletionEncoder final : public FoldingEncoder {
 public:
  CompletionEncoder(const ApiRequest& request, AnswerHead answer_head)
      : FoldingEncoder(request, std::move(answer_head), !request.stream),
        logprobs_(request.sampling.logprob),
        tops_(request.sampling.top_logprobs > 0),
        include_usage_(request.include_usage),
        echo_(request.echo),
        n_(request.n),
        offsets_(static_cast<size_t>(request.choice_count())) {}

 protected:
  void begin() override {
    for (size_t i = 0; echo_ && i < folds().size(); ++i) {
      write(i, echo_of(i), nullptr, nullptr);
    }
  }

  void opened(const AnswerBlock& /*block*/, size_t /*index*/) override {}
  void closed(const AnswerBlock& /*block*/, size_t /*index*/) override {}

  void grew(const AnswerBlock& /*block*/, size_t /*index*/, std::string_view delta) override {
    const auto index = static_cast<size_t>(choice());
    write(index, delta, logprobs_json(index), nullptr);
  }

  void choice_finished() override {
    const auto index = static_cast<size_t>(choice());
    write(index, "", logprobs_json(index), openai_finish(fold().finish().reason, false));
  }

  void end(const AnswerUsage& usage) override {
    if (include_usage_) {
      Json chunk = object();
      chunk["choices"] = Json::array();
      chunk["usage"] = openai_usage(usage);
      append_sse(out(), "", json_text(chunk));
    }
    append_sse(out(), "", "[DONE]");
  }

  void broken(const ApiError& error) override {
    append_sse(out(), "", error_body(error, ApiDialect::kOpenAi, head().id));
    append_sse(out(), "", "[DONE]");
  }

  std::string whole(const AnswerUsage& usage) override {
    Json body = object();
    body["choices"] = Json::array();
    for (size_t i = 0; i < folds().size(); ++i) {
      std::string text = echo_of(i);
      for (const AnswerBlock& block : folds()[i].blocks()) text += block.text;
      body["choices"].push_back(
          choice_json(i, text, logprobs_json(i), openai_finish(folds()[i].finish().reason, false)));
    }
    body["usage"] = openai_usage(usage);
    return json_text(body);
  }

 private:
  Json object() const {
    Json json;
    json["id"] = "cmpl-" + head().id;
    json["object"] = "text_completion";
    json["created"] = head().created;
    json["model"] = head().model;
    json["system_fingerprint"] = nullptr;
    if (!head().fingerprint.empty()) json["system_fingerprint"] = head().fingerprint;
    return json;
  }

  std::string echo_of(size_t index) const {
    const size_t prompt = index / static_cast<size_t>(n_);
    return echo_ && prompt < head().echo_texts.size() ? head().echo_texts[prompt] : std::string();
  }

  static Json choice_json(size_t index, std::string_view text, Json logprobs, Json finish) {
    Json json;
    json["index"] = index;
    json["text"] = text;
    json["logprobs"] = std::move(logprobs);
    json["finish_reason"] = std::move(finish);
    return json;
  }

  void write(size_t index, std::string_view text, Json logprobs, Json finish) {
    Json chunk = object();
    chunk["choices"] =
        Json::array({choice_json(index, text, std::move(logprobs), std::move(finish))});
    if (include_usage_) chunk["usage"] = nullptr;
    append_sse(out(), "", json_text(chunk));
  }

  // The tokens that came since the last time, in the parallel lists of this API.
  Json logprobs_json(size_t index) {
    if (!logprobs_) return nullptr;
    Json json;
    for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      json[key] = Json::array();
    }
    if (!tops_) json["top_logprobs"] = nullptr;
    for (const AnswerToken& token : folds()[index].take_tokens(BlockKind::kContent)) {
      json["tokens"].push_back(token_text(token.chosen.bytes));
      json["token_logprobs"].push_back(finite_logprob(token.chosen.logprob));
      json["text_offset"].push_back(offsets_[index]);
      offsets_[index] += code_points(token.chosen.bytes);
      if (!tops_) continue;
      Json tops = Json::object();
      for (const AnswerLogprob& top : token.top) {
        tops[token_text(top.bytes)] = finite_logprob(top.logprob);
      }
      json["top_logprobs"].push_back(std::move(tops));
    }
    return json;
  }

  bool logprobs_;
  bool tops_;
  bool include_usage_;
  bool echo_;
  int32_t n_;
  std::vector<int64_t> offsets_;  // of each choice: code points before its next token
};

}  // namespace

std::unique_ptr<AnswerEncoder> make_completion_encoder(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<CompletionEncoder>(request, std::move(head));
}

}  // namespace galley::serve
