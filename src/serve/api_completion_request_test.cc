// Plain completions: every form of the prompt, what is refused and how it is
// named, and what is accepted but told.
#include <gtest/gtest.h>

#include "serve/api_request.h"

namespace galley::serve {
namespace {

std::string failure(std::string_view body) {
  const auto request = parse_completion_request(body, {});
  if (request) return "accepted";
  return (request.error().code == ErrorCode::kUnsupported ? "unsupported " : "invalid ") +
         request.error().message;
}

TEST(CompletionRequest, FormsOfThePrompt) {
  const auto text = parse_completion_request(R"({"model":"m","prompt":"Once"})", {});
  ASSERT_TRUE(text);
  ASSERT_EQ(text->prompts.size(), 1U);
  EXPECT_EQ(text->prompts[0].text, "Once");
  EXPECT_EQ(text->model, "m");
  const auto ids = parse_completion_request(R"({"prompt":[5,6]})", {});
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->prompts[0].ids, (std::vector<int32_t>{5, 6}));
  const auto many = parse_completion_request(R"({"prompt":["a",[7]],"n":2})", {});
  ASSERT_TRUE(many);
  EXPECT_EQ(many->prompts[1].ids, std::vector<int32_t>{7});
  EXPECT_EQ(many->choice_count(), 4);
}

TEST(CompletionRequest, Settings) {
  const auto request = parse_completion_request(
      R"({"prompt":"a","max_tokens":9,"temperature":0.5,"top_p":0.9,"stop":["x","y"],"seed":-1,)"
      R"("logprobs":2,"stream":true,"stream_options":{"include_usage":true},"user":"u",)"
      R"("suffix":"z","priority":"batch","logit_bias":{"3":-5}})",
      {});
  ASSERT_TRUE(request);
  EXPECT_EQ(request->output_tokens_max, 9);
  EXPECT_FLOAT_EQ(request->sampling.temperature, 0.5F);
  EXPECT_EQ(request->stop_texts, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(request->seed, ~uint64_t{0});
  EXPECT_TRUE(request->sampling.logprob);
  EXPECT_EQ(request->sampling.top_logprobs, 2);
  EXPECT_TRUE(request->stream && request->include_usage);
  EXPECT_EQ(request->suffix, "z");
  EXPECT_EQ(request->user, "u");
  EXPECT_EQ(request->priority, engine::Priority::kBatch);
  EXPECT_TRUE(request->ignored_fields.empty());
}

TEST(CompletionRequest, EveryRefusalNamesItsField) {
  EXPECT_EQ(failure("{}"), "invalid prompt: missing");
  EXPECT_EQ(failure(R"({"prompt":7})"),
            "invalid prompt: must be a string, a list of token ids, or a list of those");
  EXPECT_EQ(failure(R"({"prompt":["a",{}]})"),
            "invalid prompt[1]: must be a string, a list of token ids, or a list of those");
  EXPECT_EQ(failure(R"({"prompt":[1,-2]})"), "invalid prompt[1]: must lie in 0..2147483647, is -2");
  EXPECT_EQ(failure(R"({"prompt":"a","n":1000000000})"),
            "invalid n: must lie in 1..16, is 1000000000");
  EXPECT_EQ(failure(R"({"prompt":"a","max_tokens":0})"),
            "invalid max_tokens: must lie in 1..2147483647, is 0");
  EXPECT_EQ(failure(R"({"prompt":"a","temperature":1e6})"),
            "invalid temperature: is 1000000, must be from 0 to 100");
  EXPECT_EQ(failure(R"({"prompt":"a","top_k":0.01})"),
            "invalid top_k: must be an integer, is a number");
  EXPECT_EQ(failure(R"({"prompt":"a","top_p":-1})"),
            "invalid top_p: is -1, must be above 0, at most 1");
  EXPECT_EQ(failure(R"({"prompt":"a","stop":[""]})"), "invalid stop[0]: must have 1 to 256 bytes");
  EXPECT_EQ(failure(R"({"prompt":"a","stream":"yes"})"),
            "invalid stream: must be true or false, is a string");
  EXPECT_EQ(failure(R"({"prompt":"a","best_of":2})"),
            "unsupported best_of: is not supported; leave it out or set it to n");
  EXPECT_EQ(failure(R"({"prompt":"a","echo":true,"logprobs":0})"),
            "unsupported echo: is not supported together with logprobs: log-probabilities of the "
            "prompt are not computed");
  EXPECT_EQ(failure(R"({"prompt":[1],"suffix":"a"})"),
            "unsupported suffix: needs prompts that are text, not token ids");
  EXPECT_EQ(failure(R"({"prompt":"a","messages":[1]})"),
            "unsupported messages: belongs to /v1/chat/completions; here the field is prompt");
  EXPECT_EQ(failure(R"({"prompt":"a","prompt":"b"})"),
            "invalid the key \"prompt\" appears twice in one object");
  EXPECT_EQ(failure("[]"), "invalid top level: must be a JSON object");
  EXPECT_EQ(failure(std::string(70, '[')), "invalid JSON nested deeper than 64 levels");
}

TEST(CompletionRequest, UnknownFieldsAreNamedForAHeader) {
  const auto request = parse_completion_request(
      R"({"prompt":"a","foo":1,"b\nr,":{},"none":null,"store":true,"stream_options":{"x":1}})", {});
  ASSERT_TRUE(request);
  EXPECT_EQ(ignored_fields_warning(*request),
            R"(199 galley "ignored fields: store, stream_options, stream_options.x, foo, b?r?")");
  std::string many = R"({"prompt":"a")";
  for (int i = 10; i < 60; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  const auto bounded = parse_completion_request(many + "}", {});
  ASSERT_TRUE(bounded);
  EXPECT_EQ(bounded->ignored_fields.size(), kIgnoredFieldsMax + 1);
  EXPECT_EQ(bounded->ignored_fields.back(), "...");
}

}  // namespace
}  // namespace galley::serve
