#include "serve/codec.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace galley::serve {
namespace {

constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kPad = "<｜▁pad▁｜>";
constexpr std::string_view kSystem = "<｜System｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";

// Between the blocks of one turn and between merged user turns.
constexpr std::string_view kBlockSeparator = "\n\n";

Result<Role> parse_role(const JsonValue& value) {
  const std::string_view name = TRY(value.as_string());
  if (name == "system" || name == "developer") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  return value.error("must be system, user or assistant, not \"" + std::string(name) + "\"");
}

Result<std::string> parse_content(const JsonValue& value) {
  if (value.is_string()) return std::string(TRY(value.as_string()));
  if (!value.is_array()) return value.error("must be a string or a list of text parts");
  std::string content;
  for (size_t i = 0; i < value.size(); ++i) {
    const JsonValue part = value.item(i);
    const JsonValue type = TRY(part.at("type"));
    const std::string_view name = TRY(type.as_string());
    if (name != "text")
      return type.error("only text parts are supported, not \"" + std::string(name) + "\"");
    if (i > 0) content += kBlockSeparator;
    const JsonValue text = TRY(part.at("text"));
    content += TRY(text.as_string());
  }
  return content;
}

// Neighbouring user turns are one turn.
std::vector<ChatMessage> merge_user_turns(std::span<const ChatMessage> messages) {
  std::vector<ChatMessage> merged;
  for (const ChatMessage& message : messages) {
    if (message.role == Role::kUser && !merged.empty() && merged.back().role == Role::kUser) {
      merged.back().content += kBlockSeparator;
      merged.back().content += message.content;
    } else {
      merged.push_back(message);
    }
  }
  return merged;
}

Result<int32_t> required_id(const std::optional<int32_t>& id, std::string_view text) {
  if (id) return *id;
  return Error{ErrorCode::kUnsupported, "the tokenizer has no control token " + std::string(text)};
}

}  // namespace

Result<std::vector<ChatMessage>> parse_messages(const JsonValue& messages) {
  if (!messages.is_array()) return messages.error("must be a list of messages");
  if (messages.size() == 0) return messages.error("has no message");
  if (messages.size() > kMessagesMax) {
    return messages.error("has more than " + std::to_string(kMessagesMax) + " messages");
  }
  std::vector<ChatMessage> parsed;
  for (size_t i = 0; i < messages.size(); ++i) {
    const JsonValue item = messages.item(i);
    ChatMessage message;
    const JsonValue role = TRY(item.at("role"));
    const JsonValue content = TRY(item.at("content"));
    message.role = TRY(parse_role(role));
    message.content = TRY(parse_content(content));
    if (const std::optional<JsonValue> open_ended = item.find("wo_eos")) {
      message.open_ended = TRY(open_ended->as_bool());
    }
    for (const char* unsupported : {"tool_calls", "tools", "response_format", "task"}) {
      const std::optional<JsonValue> field = item.find(unsupported);
      if (field && !field->is_null()) return field->error("is not supported yet");
    }
    parsed.push_back(std::move(message));
  }
  return parsed;
}

Result<ChatCodec> ChatCodec::create(const model::Tokenizer& tokenizer) {
  ChatCodec codec(tokenizer);
  codec.begin_ = TRY(required_id(tokenizer.added_id(kBegin), kBegin));
  codec.end_ = TRY(required_id(tokenizer.added_id(kEnd), kEnd));
  codec.system_ = tokenizer.added_id(kSystem);
  codec.user_ = tokenizer.added_id(kUser);
  codec.assistant_ = tokenizer.added_id(kAssistant);
  codec.end_think_ = tokenizer.added_id(kEndThink);
  codec.control_ = {codec.begin_, codec.end_};
  for (const std::string_view text : {kPad, kSystem, kUser, kAssistant, kReminder}) {
    if (const std::optional<int32_t> id = tokenizer.added_id(text)) codec.control_.push_back(*id);
  }
  std::sort(codec.control_.begin(), codec.control_.end());
  return codec;
}

bool ChatCodec::is_control(int32_t id) const {
  return std::binary_search(control_.begin(), control_.end(), id);
}

Result<void> ChatCodec::append_text(std::string_view text, std::vector<int32_t>& ids) const {
  const std::vector<int32_t> encoded = TRY(tokenizer_->encode(text, model::Markup::kPlain));
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return {};
}

Result<std::vector<int32_t>> ChatCodec::encode_text(std::string_view text,
                                                    model::Markup markup) const {
  std::vector<int32_t> ids = {begin_};
  const std::vector<int32_t> encoded = TRY(tokenizer_->encode(text, markup));
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return ids;
}

Result<std::vector<int32_t>> ChatCodec::encode(std::span<const ChatMessage> messages) const {
  const std::vector<ChatMessage> turns = merge_user_turns(messages);
  std::vector<int32_t> ids = {begin_};
  const auto open_answer = [&]() -> Result<void> {
    ids.push_back(TRY(required_id(assistant_, kAssistant)));
    ids.push_back(TRY(required_id(end_think_, kEndThink)));
    return {};
  };
  bool answering = false;  // the assistant's turn is open
  for (size_t i = 0; i < turns.size(); ++i) {
    const ChatMessage& turn = turns[i];
    if (turn.role == Role::kSystem) ids.push_back(TRY(required_id(system_, kSystem)));
    if (turn.role == Role::kUser) ids.push_back(TRY(required_id(user_, kUser)));
    TRY(append_text(turn.content, ids));
    answering = turn.role == Role::kAssistant && turn.open_ended;
    if (turn.role == Role::kAssistant && !turn.open_ended) ids.push_back(end_);
    // A system turn at the start is no turn to answer; later ones are.
    const bool asks = turn.role == Role::kUser || (turn.role == Role::kSystem && i > 0);
    const bool answer_next = i + 1 < turns.size() && turns[i + 1].role == Role::kAssistant;
    if (asks && answer_next) TRY(open_answer());
  }
  // Whatever came last, the prompt ends where an answer begins; the release leaves a lone
  // system turn or a closed answer without this header, where nothing could follow.
  if (!answering) TRY(open_answer());
  return ids;
}

}  // namespace galley::serve
