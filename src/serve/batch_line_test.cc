// Batch lines and records: what is taken, what is refused and how it is named,
// and that records read back as they were written.
#include "serve/batch_line.h"

#include <gtest/gtest.h>

namespace galley::serve {
namespace {

std::string refusal(std::string_view line) {
  const Result<BatchRequest> request = parse_batch_line(line, {});
  return request ? "" : request.error().message;
}

TEST(BatchLine, TakesAllThreeInputs) {
  const BatchRequest text = parse_batch_line(R"({"custom_id": "a", "prompt": "Once"})", {}).value();
  EXPECT_EQ(text.custom_id, "a");
  EXPECT_EQ(text.text, "Once");
  EXPECT_FALSE(text.output_tokens_max.has_value());
  const BatchRequest chat =
      parse_batch_line(R"({"custom_id": "b", "messages": [{"role": "user", "content": "Hi"}]})", {})
          .value();
  ASSERT_EQ(chat.conversation->messages.size(), 1U);
  EXPECT_EQ(chat.conversation->messages[0].content[0].data, "Hi");
  const BatchRequest ids =
      parse_batch_line(R"({"custom_id": "c", "ids": [0, 17], "max_tokens": 5})", {}).value();
  EXPECT_EQ(ids.ids, (std::vector<int32_t>{0, 17}));
  EXPECT_EQ(ids.output_tokens_max, 5);
}

TEST(BatchLine, SettingsOverrideDefaults) {
  engine::SamplingOptions defaults;
  defaults.temperature = 0.5F;
  defaults.top_k = 9;
  const BatchRequest request =
      parse_batch_line(R"({"custom_id": "a", "body": {"prompt": "x", "temperature": 0, "seed": 3,
                           "top_p": 0.9, "logit_bias": {"4": -2}, "stop_tokens": [1, 2]}})",
                       defaults)
          .value();
  EXPECT_EQ(request.sampling.temperature, 0.0F);
  EXPECT_EQ(request.sampling.top_k, 9);
  EXPECT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.seed, 3U);
  ASSERT_EQ(request.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(request.sampling.logit_bias[0], (std::pair<int32_t, float>(4, -2.0F)));
  EXPECT_EQ(request.stop_tokens, (std::vector<int32_t>{1, 2}));
}

TEST(BatchLine, StopSequences) {
  const auto stops = [](std::string_view line) {
    return parse_batch_line(line, {}).value().stop_texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(stops(R"({"custom_id": "a", "prompt": "x", "stop": "END"})"), (Texts{"END"}));
  EXPECT_EQ(stops(R"({"custom_id": "a", "prompt": "x", "stop": ["a", "b"]})"), (Texts{"a", "b"}));
  EXPECT_EQ(stops(R"({"custom_id": "a", "prompt": "x", "stop": null})"), Texts{});
  EXPECT_NE(refusal(R"({"custom_id": "a", "prompt": "x", "stop": [""]})").find("stop"),
            std::string::npos);
}

TEST(BatchLine, WhatWouldBeIgnoredIsRefused) {
  EXPECT_EQ(refusal(R"({"custom_id": "a", "prompt": "x", "n": 1, "stream": false, "tools": null,
                        "model": "m", "user": "u", "metadata": {"a": 1}})"),
            "");
  EXPECT_EQ(
      refusal(R"({"custom_id": "a", "method": "POST", "url": "/v1", "body": {"prompt": "x"}})"),
      "");
  for (const char* field : {R"("n": 2)", R"("stream": true)", R"("tools": [])",
                            R"("temprature": 1)", R"("logprobs": true)"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_NE(
        refusal(R"({"custom_id": "a", "prompt": "x", )" + std::string(field) + "}").find(name),
        std::string::npos);
    EXPECT_NE(refusal(R"({"custom_id": "a", "body": {"prompt": "x", )" + std::string(field) + "}}")
                  .find(name),
              std::string::npos);
  }
  EXPECT_NE(refusal(R"({"custom_id": "a", "temperature": 1, "body": {"prompt": "x"}})"), "");
}

TEST(BatchLine, RefusalsNameTheField) {
  EXPECT_NE(refusal("{"), "");
  EXPECT_NE(refusal("[]"), "");
  EXPECT_NE(refusal(R"({"prompt": "x"})").find("custom_id"), std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "", "prompt": "x"})").find("custom_id"), std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": 1, "prompt": "x"})").find("custom_id"), std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a"})").find("prompt"), std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a", "prompt": "x", "ids": [1]})").find("more than one"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a", "ids": [1, -1]})").find("ids"), std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a", "ids": []})").find("ids"), std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a", "prompt": "x", "max_tokens": 0})").find("max_tokens"),
            std::string::npos);
  EXPECT_NE(
      refusal(R"({"custom_id": "a", "prompt": "x", "temperature": "hot"})").find("temperature"),
      std::string::npos);
  EXPECT_NE(
      refusal(R"({"custom_id": "a", "prompt": "x", "logit_bias": {"x": 1}})").find("logit_bias"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a", "custom_id": "b", "prompt": "x"})"), "");
  EXPECT_NE(
      refusal(R"({"custom_id": "a", "messages": [{"role": "king", "content": "x"}]})").find("role"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"custom_id": "a", "messages": []})").find("messages"), std::string::npos);
  EXPECT_NE(refusal("{\"custom_id\": \"a\", \"prompt\": \"\xff\"}"), "");
}

TEST(BatchLine, RecordsReadBack) {
  BatchAnswer answer;
  answer.text = "two\nlines \"q\" \xe4\xbd\xa0";
  answer.ids = {4, 5};
  answer.finish_reason = "stop";
  const std::string line = answer_line("a\"b", answer);
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const BatchRecord record = parse_batch_record(line).value();
  EXPECT_EQ(record.custom_id, "a\"b");
  EXPECT_FALSE(record.failed);

  const BatchRecord failed =
      parse_batch_record(error_line(std::nullopt, 7, hash_line("junk"), "not JSON")).value();
  EXPECT_TRUE(failed.failed);
  EXPECT_EQ(failed.custom_id, "");
  EXPECT_EQ(failed.line_number, 7);
  EXPECT_EQ(failed.line_hash, hash_line("junk"));
  EXPECT_FALSE(parse_batch_record("{\"custom_id\": \"a\"}").has_value());
  EXPECT_FALSE(parse_batch_record(line.substr(0, line.size() / 2)).has_value());
}

TEST(BatchLine, HashIsFnv1a) {
  EXPECT_EQ(hash_line(""), 0xcbf29ce484222325U);
  EXPECT_EQ(hash_line("a"), 0xaf63dc4c8601ec8cU);  // the algorithm's published vector
}

}  // namespace
}  // namespace galley::serve
