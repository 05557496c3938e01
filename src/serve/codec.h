// Conversations to prompt tokens (spec/chat.md 2, 3): chat mode, text turns.
//
// Role tokens are written as ids and the text between them is encoded with
// markup off, so that a look-alike inside a message cannot open a turn. Knows
// nothing of HTTP or sampling. Immutable; any thread may use it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/tokenizer.h"

namespace galley::serve {

enum class Role : uint8_t { kSystem, kUser, kAssistant };

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  bool open_ended = false;  // assistant: its turn goes on, no end token ("wo_eos")
};

constexpr size_t kMessagesMax = 4096;

// [{"role", "content"}, ...]; content is a string or a list of {"type": "text", "text"}.
// Errors name the field by its path.
Result<std::vector<ChatMessage>> parse_messages(const JsonValue& messages);

class ChatCodec {
 public:
  // The tokenizer must outlive the codec. kUnsupported without begin and end tokens; role
  // tokens are only missed by a conversation that needs them.
  static Result<ChatCodec> create(const model::Tokenizer& tokenizer);

  // The prompt whose continuation is the assistant's next turn.
  Result<std::vector<int32_t>> encode(std::span<const ChatMessage> messages) const;

  // BOS and the text as it is.
  Result<std::vector<int32_t>> encode_text(std::string_view text, model::Markup markup) const;

  int32_t begin_id() const { return begin_; }
  int32_t end_id() const { return end_; }
  // Tokens that never belong in an answer's text: begin, end, padding, roles.
  bool is_control(int32_t id) const;

 private:
  explicit ChatCodec(const model::Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  Result<void> append_text(std::string_view text, std::vector<int32_t>& ids) const;

  const model::Tokenizer* tokenizer_;
  int32_t begin_ = 0;
  int32_t end_ = 0;
  std::optional<int32_t> system_;
  std::optional<int32_t> user_;
  std::optional<int32_t> assistant_;
  std::optional<int32_t> end_think_;
  std::vector<int32_t> control_;  // sorted
};

}  // namespace galley::serve
