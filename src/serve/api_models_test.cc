// Bodies of the small endpoints, letter by letter.
#include "serve/api_models.h"

#include <gtest/gtest.h>

namespace galley::serve {
namespace {

TEST(ApiModels, ListAndOne) {
  const std::vector<ModelCard> cards = {{"nano", 17, 4096, 1024, ""}};
  const std::string one =
      R"({"id":"nano","object":"model","created":17,"owned_by":"galley","root":"nano",)"
      R"("max_model_len":4096,"context_length":4096,"max_output_tokens":1024})";
  EXPECT_EQ(models_body(cards), R"({"object":"list","data":[)" + one + "]}");
  EXPECT_EQ(model_body(cards, "nano"), one);
  EXPECT_EQ(model_body(cards, "other"), std::nullopt);
}

TEST(ApiModels, Tokenize) {
  const auto request = parse_tokenize_request(R"({"prompt":"hi","return_token_strs":true})");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->text, "hi");
  EXPECT_TRUE(request->add_special_tokens && request->return_token_texts);
  EXPECT_FALSE(parse_tokenize_request(R"({"messages":[]})")->text.has_value());
  EXPECT_FALSE(parse_tokenize_request("{}"));
  EXPECT_FALSE(parse_tokenize_request(R"({"prompt":"a","messages":[]})"));
  const std::vector<int32_t> ids = {1, 2};
  const std::vector<std::string> texts = {"h", "i"};
  EXPECT_EQ(tokenize_body(ids, texts, 99),
            R"({"count":2,"max_model_len":99,"tokens":[1,2],"token_strs":["h","i"]})");
  EXPECT_EQ(tokenize_body(ids, {}, 99),
            R"({"count":2,"max_model_len":99,"tokens":[1,2],"token_strs":null})");
}

TEST(ApiModels, Detokenize) {
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":[3,4]})")->ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":[3,"x"]})").error().message,
            "tokens[1]: must be an integer, is a string");
  EXPECT_EQ(detokenize_body("a\"b"), R"({"prompt":"a\"b"})");
  EXPECT_EQ(count_tokens_body(12), R"({"input_tokens":12})");
}

}  // namespace
}  // namespace galley::serve
