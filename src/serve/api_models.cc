#include "serve/api_models.h"

#include <algorithm>

#include "serve/api_json.h"
#include "serve/api_request_fields.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

Json card_json(const ModelCard& card) {
  Json json;
  json["id"] = card.id;
  json["object"] = "model";
  json["created"] = card.created;
  json["owned_by"] = "galley";
  json["root"] = card.root.empty() ? card.id : card.root;
  // Clients read one or the other of these names.
  json["max_model_len"] = card.context_tokens_max;
  json["context_length"] = card.context_tokens_max;
  json["max_output_tokens"] = card.output_tokens_max;
  return json;
}

}  // namespace

std::string models_body(std::span<const ModelCard> cards) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const ModelCard& card : cards) body["data"].push_back(card_json(card));
  return json_text(body);
}

std::optional<std::string> model_body(std::span<const ModelCard> cards, std::string_view id) {
  const auto card = std::find_if(cards.begin(), cards.end(),
                                 [&](const ModelCard& each) { return each.id == id; });
  if (card == cards.end()) return std::nullopt;
  return json_text(card_json(*card));
}

Result<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  const JsonDocument document = TRY(parse_body(body));
  const JsonValue root = document.root();
  TokenizeRequest request;
  request.model = TRY(read_name(root, "model"));
  const auto prompt = given(root, "prompt");
  const bool has_messages = given(root, "messages").has_value();
  if (prompt && has_messages) {
    return prompt->error("cannot be given together with messages; leave out one of them");
  }
  if (!prompt && !has_messages) {
    return root.error("needs \"prompt\" (a text) or \"messages\" (a conversation)");
  }
  if (prompt) request.text = std::string(TRY(prompt->as_string()));
  request.add_special_tokens = TRY(read_bool(root, "add_special_tokens", true));
  request.return_token_texts = TRY(read_bool(root, "return_token_strs", false));
  return request;
}

std::string tokenize_body(std::span<const int32_t> ids, std::span<const std::string> token_texts,
                          int64_t context_tokens_max) {
  Json body;
  body["count"] = ids.size();
  body["max_model_len"] = context_tokens_max;
  body["tokens"] = ids;
  body["token_strs"] = nullptr;
  if (!token_texts.empty()) body["token_strs"] = token_texts;
  return json_text(body);
}

Result<DetokenizeRequest> parse_detokenize_request(std::string_view body) {
  const JsonDocument document = TRY(parse_body(body));
  const JsonValue root = document.root();
  DetokenizeRequest request;
  request.model = TRY(read_name(root, "model"));
  const JsonValue tokens = TRY(root.at("tokens"));
  for (const int64_t id : TRY(tokens.as_integers(0, kInt32Max))) {
    request.ids.push_back(static_cast<int32_t>(id));
  }
  return request;
}

std::string detokenize_body(std::string_view text) { return json_text(Json{{"prompt", text}}); }

std::string count_tokens_body(int64_t input_tokens) {
  return json_text(Json{{"input_tokens", input_tokens}});
}

}  // namespace galley::serve
