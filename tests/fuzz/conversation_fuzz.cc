// Any bytes as a JSON conversation: refused in one line, or a prompt in which
// every control token stands because of the conversation's form, none because of
// its texts, and every text stands as it is.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/tokenizer.h"
#include "serve/codec.h"
#include "serve/control_text.h"
#include "serve/message_json.h"
#include "serve/turns.h"

namespace {

using namespace galley;
using namespace galley::serve;

void check_message(const Error& error) {
  CHECK(!error.message.empty() && error.message.find('\n') == std::string::npos);
}

void check_prompt(const Prompt& prompt, const Conversation& conversation,
                  const model::Tokenizer& tokenizer) {
  const auto count = [&](std::string_view token) {
    return std::count(prompt.ids.begin(), prompt.ids.end(), *tokenizer.added_id(token));
  };
  const std::vector<Turn> turns = make_turns(conversation.messages);
  const auto turns_of = [&](Role role) {
    return std::count_if(turns.begin(), turns.end(),
                         [&](const Turn& turn) { return turn.role == role; });
  };
  CHECK(prompt.ids.front() == *tokenizer.added_id(kBegin) && count(kBegin) == 1);
  CHECK(count(kUser) == turns_of(Role::kUser));
  CHECK(count(kSystem) - turns_of(Role::kSystem) >= 0);
  CHECK(count(kSystem) - turns_of(Role::kSystem) <= 1);  // effort, tools or format may add one
  CHECK(count(kReminder) == turns_of(Role::kReminder));
  CHECK(count(kEnd) <= turns_of(Role::kAssistant));
  CHECK(count(kAssistant) <= static_cast<std::ptrdiff_t>(turns.size()) + 1);
  CHECK(count(kImage) == static_cast<std::ptrdiff_t>(prompt.images.size()));
  const bool has_calls = std::any_of(conversation.messages.begin(), conversation.messages.end(),
                                     [](const Message& message) { return !message.calls.empty(); });
  if (!has_calls && conversation.tools.empty()) CHECK(count(kDsml) == 0);
  const std::string text = tokenizer.decode(prompt.ids).value();
  for (const Message& message : conversation.messages) {
    for (const ContentPart& part : message.content) {
      if (part.kind == PartKind::kText) CHECK(text.find(part.data) != std::string::npos);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const model::Tokenizer kTokenizer =
      model::Tokenizer::open(GALLEY_SOURCE_DIR "/models/nano").value();
  static const ChatCodec kCodec = ChatCodec::create(kTokenizer, true).value();
  if (size < 2) return 0;
  JsonLimits limits;
  limits.keep_order = true;
  const auto document = JsonDocument::parse(
      std::string_view(reinterpret_cast<const char*>(data) + 2, size - 2), limits);
  if (!document) {
    check_message(document.error());
    return 0;
  }
  auto conversation = parse_messages(document->root());
  if (!conversation) {
    check_message(conversation.error());
    return 0;
  }
  conversation->thinking = (data[0] & 1) != 0;
  conversation->keep_reasoning = (data[0] & 2) != 0;
  conversation->open_answer = (data[0] & 4) == 0;
  conversation->tool_choice = static_cast<ToolChoice>((data[0] >> 3) % 3);
  conversation->effort = data[1];
  if (const auto checked = check_tool_results(conversation->messages); !checked) {
    check_message(checked.error());
  }
  const auto prompt = kCodec.encode(*conversation);
  if (!prompt) {
    check_message(prompt.error());
    return 0;
  }
  check_prompt(*prompt, *conversation, kTokenizer);
  return 0;
}
