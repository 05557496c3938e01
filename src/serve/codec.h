// Conversations to prompt tokens (spec/chat.md 2, 3), and texts to be continued
// or filled in.
//
// Control tokens are written as ids and text is encoded with markup off, so that
// a look-alike inside a message cannot open a turn. Knows nothing of HTTP or
// sampling. Immutable; any thread may use it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"
#include "serve/conversation.h"

namespace galley::serve {

// In what the answer begins, as the prompt left it open.
enum class AnswerStart : uint8_t { kContent, kReasoning, kCalls };

struct Prompt {
  std::vector<int32_t> ids;
  AnswerStart start = AnswerStart::kContent;
  bool tools = false;               // it offers some: calls in the answer are to be read
  std::vector<std::string> images;  // one an image token, in their order
};

class ChatCodec {
 public:
  // The tokenizer must outlive the codec. kUnsupported without begin and end tokens; other
  // control tokens are only missed by a conversation that needs them. Images are refused unless
  // what comes after can take them.
  static Result<ChatCodec> create(const model::Tokenizer& tokenizer, bool takes_images = false);

  // A prompt over its budget is not encoded to its end, and of no use: ask the budget.
  // The prompt whose continuation is the assistant's next turn.
  Result<Prompt> encode(const Conversation& conversation,
                        model::TokenBudget* budget = nullptr) const;

  // BOS and the text as it is.
  Result<std::vector<int32_t>> encode_text(std::string_view text, model::Markup markup,
                                           model::TokenBudget* budget = nullptr) const;

  // The prompt whose continuation stands between `before` and `after`.
  Result<std::vector<int32_t>> encode_fill(std::string_view before, std::string_view after,
                                           model::TokenBudget* budget = nullptr) const;

  int32_t begin_id() const { return begin_; }
  int32_t end_id() const { return end_; }
  // Tokens that never belong in an answer's text: begin, end, padding, roles, images, and what the
  // tokenizer calls special.
  bool is_control(int32_t id) const;

 private:
  ChatCodec(const model::Tokenizer& tokenizer, bool takes_images)
      : tokenizer_(&tokenizer), takes_images_(takes_images) {}

  const model::Tokenizer* tokenizer_;
  bool takes_images_;
  int32_t begin_ = 0;
  int32_t end_ = 0;
  std::vector<int32_t> control_;  // sorted
};

}  // namespace galley::serve
