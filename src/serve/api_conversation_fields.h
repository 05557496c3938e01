// What the three conversational APIs ask of a conversation beside its messages,
// in one meaning: thinking, tools and which to call, the form of the answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "serve/api_request.h"
#include "serve/conversation.h"

namespace galley::serve {

// What a request says of thinking; unsaid things come from the defaults.
struct ThinkingWish {
  std::optional<bool> on;
  std::optional<int32_t> effort;
};

// {"type": "enabled" | "disabled" | "adaptive"}.
Result<void> read_thinking(const JsonValue& thinking, ThinkingWish& wish);
// none, minimal, low, medium, high, xhigh, max, or 1..100. "none" switches thinking off; any other
// switches it on, unless that was said already.
Result<void> read_effort(const JsonValue& effort, ThinkingWish& wish);

// Content that is a string or a list of what `read_part` reads.
Result<std::vector<ContentPart>> read_content(const JsonValue& content,
                                              Result<ContentPart> (*read_part)(const JsonValue&));
// The member "text", or another that holds the text of a part.
Result<ContentPart> read_text_part(const JsonValue& part, std::string_view key = "text");

// The name of a call made earlier, from the member "name".
Result<std::string> read_call_name(const JsonValue& call);

// A tool whose parts stand apart in its API; parts that are not given stay away.
struct ToolParts {
  std::optional<JsonValue> name = {};
  std::optional<JsonValue> description = {};
  std::optional<JsonValue> parameters = {};
  std::string fixed_parameters = {};         // JSON text, when `parameters` is none
  std::optional<JsonValue> space_name = {};  // of the namespace it is in
  std::optional<JsonValue> space_description = {};
};
// Adds it; an error when the name is wrong or taken.
Result<void> add_tool(const JsonValue& item, const ToolParts& parts, Conversation& conversation);

// Only `name` may be called, and must be; `field` is where that was said.
Result<void> choose_tool(const JsonValue& field, std::string_view name, Conversation& conversation);
// "auto", "none" or "required" (also spelt "any").
Result<void> choose_tools(const JsonValue& field, std::string_view choice,
                          Conversation& conversation);

// Once everything is read: settles thinking and checks what only holds together. `place` is the
// field that errors name where the conversation's messages are not the request's, one for one;
// empty where they are, and then errors name the message.
Result<void> settle_conversation(const ThinkingWish& wish, const RequestDefaults& defaults,
                                 Conversation& conversation, std::string_view place = "");

}  // namespace galley::serve
