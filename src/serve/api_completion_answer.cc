// Answers of POST /v1/completions: text_completion, in chunks or whole.
//
// There is no reasoning and there are no calls here: all text is the text.
#include <algorithm>
#include <utility>

#include "serve/api_openai_answer.h"

namespace galley::serve {
namespace {

constexpr OpenAiNames kNames = {"cmpl-", "text_completion", "text_completion"};

int64_t code_points(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

class CompletionEncoder final : public OpenAiEncoder {
 public:
  CompletionEncoder(const ApiRequest& request, AnswerHead answer_head)
      : OpenAiEncoder(request, std::move(answer_head), kNames),
        tops_(request.sampling.top_logprobs > 0),
        echo_(request.echo),
        n_(static_cast<size_t>(request.n)),
        offsets_(static_cast<size_t>(request.choice_count())) {}

 protected:
  void begin_choices() override {
    for (size_t i = 0; echo_ && i < folds().size(); ++i) write_text(i, echo_of(i));
  }

  void opened(const AnswerBlock& /*block*/, size_t /*index*/) override {}
  void closed(const AnswerBlock& /*block*/, size_t /*index*/) override {}

  void grew(const AnswerBlock& /*block*/, size_t /*index*/, std::string_view delta) override {
    write_text(static_cast<size_t>(choice()), delta);
  }

  void choice_finished() override {
    write_chunk(static_cast<size_t>(choice()), "text", R"("")",
                openai_finish(fold().finish().reason, fold().has_calls()));
  }

  Json whole_choice(size_t index) override {
    std::string text = echo_of(index);
    for (const AnswerBlock& block : folds()[index].blocks()) text += block.text;
    return Json{{"text", std::move(text)}};
  }

  // In the parallel lists of this API.
  Json logprobs_json(size_t index) override {
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

 private:
  std::string echo_of(size_t index) const {
    const size_t prompt = index / n_;
    return echo_ && prompt < head().echo_texts.size() ? head().echo_texts[prompt] : std::string();
  }

  void write_text(size_t index, std::string_view text) {
    write_chunk(index, "text", json_text(Json(text)));
  }

  bool tops_;
  bool echo_;
  size_t n_;
  std::vector<int64_t> offsets_;  // of each choice: code points before its next token
};

}  // namespace

std::unique_ptr<AnswerEncoder> make_completion_encoder(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<CompletionEncoder>(request, std::move(head));
}

}  // namespace galley::serve
