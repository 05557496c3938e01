// Bodies of the small endpoints: the list of models, tokens and text, counts.
//
// Pure: the caller runs the tokenizer and the codec. Limits are published so
// that clients need not guess them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::serve {

struct ModelCard {
  std::string id;
  int64_t created = 0;             // Unix seconds
  int64_t context_tokens_max = 0;  // prompt and answer together
  int64_t output_tokens_max = 0;
  std::string root;  // what the name stands for; empty: the name itself
};

// GET /v1/models and GET /v1/models/ID; nothing: no such model (answer kModelNotFound).
std::string models_body(std::span<const ModelCard> cards);
std::optional<std::string> model_body(std::span<const ModelCard> cards, std::string_view id);

// POST /tokenize: {"prompt": text} or {"messages": [...]} (with tools and the rest of a chat
// request: parse that with parse_chat_request).
struct TokenizeRequest {
  std::string model;                // may be empty: the only one
  std::optional<std::string> text;  // nothing: a conversation
  bool add_special_tokens = true;   // BOS before a text
  bool return_token_texts = false;
};
Result<TokenizeRequest> parse_tokenize_request(std::string_view body);
std::string tokenize_body(std::span<const int32_t> ids, std::span<const std::string> token_texts,
                          int64_t context_tokens_max);

// POST /detokenize: {"tokens": [ids]}.
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> ids;
};
Result<DetokenizeRequest> parse_detokenize_request(std::string_view body);
std::string detokenize_body(std::string_view text);

// POST /v1/messages/count_tokens, whose request parse_messages_request reads.
std::string count_tokens_body(int64_t input_tokens);

}  // namespace galley::serve
