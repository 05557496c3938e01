// A conversation as plain values: what every API and `galley run --chat` parse
// into, and what the codec renders (spec/chat.md 2).
//
// JSON inside a conversation (tools, arguments, a response format) is kept as
// text with its keys in the client's order: the model sees that order, and a
// later turn finds its cached prefix only when it is kept. Knows no API and no
// tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace galley::serve {

constexpr size_t kMessagesMax = 4096;
constexpr size_t kToolsMax = 1024;
constexpr size_t kCallsMax = 1024;  // in one message

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kReminder };

enum class PartKind : uint8_t { kText, kImage };

struct ContentPart {
  PartKind kind = PartKind::kText;
  std::string data;  // the text, or where the image is (URL or data URL)
};

// A call that the assistant made earlier.
struct ToolCall {
  std::string id;
  std::string name;       // "namespace::name" for a tool that has a namespace
  std::string arguments;  // JSON text of an object; anything else is shown to the model as it is
};

// Short outputs that a user turn may ask for instead of an answer.
enum class Task : uint8_t { kNone, kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

struct Message {
  Role role = Role::kUser;
  std::vector<ContentPart> content;
  Task task = Task::kNone;      // of a user
  std::string reasoning;        // of an assistant, as are the next two
  std::vector<ToolCall> calls;  // in the order they were made
  bool continues = false;       // the model goes on where this turn stops
  std::string call_id;          // of a tool: which call this is the result of
};

Message text_message(Role role, std::string text);

struct Tool {
  std::string name;        // "namespace::name" with a namespace
  std::string definition;  // the function object as the prompt shows it
};

// `function` is {"name", "description", "parameters", ...}; all members are shown, in their order
// if the document kept it. `tool_namespace` is a namespace given beside the function: a name, or
// {"name", "description"}; "namespace" inside the function counts before it.
Result<Tool> make_tool(const JsonValue& function,
                       const std::optional<JsonValue>& tool_namespace = std::nullopt);

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };

constexpr int32_t kEffortMin = 1;
constexpr int32_t kEffortMax = 100;
constexpr int32_t kEffortDefault = 75;

// low 50, high 75, max 100, and xhigh as high; nothing for other names.
std::optional<int32_t> effort_named(std::string_view name);

struct Conversation {
  std::vector<Message> messages;
  std::vector<Tool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string chosen_tool;      // with kRequired: only this one; empty: any
  std::string response_format;  // JSON object shown to the model, {"type": "json_object"}; or empty
  bool thinking = false;
  int32_t effort = kEffortDefault;  // 1..100, with thinking
  bool keep_reasoning = false;      // of turns before the last user's; tools keep it anyway
  bool open_answer = true;          // end where the assistant's next turn begins
};

// The last message, an assistant's, goes on where it stops: in its reasoning when it has nothing
// else yet and the conversation thinks, otherwise in its content.
Result<void> continue_last(Conversation& conversation);

// Every call is answered by exactly one tool message before the next turn, and no tool message is
// without its call.
Result<void> check_tool_results(const std::vector<Message>& messages);

// Whether any text speaks of JSON, as the API asks of a conversation with a JSON response format.
bool mentions_json(const std::vector<Message>& messages);

}  // namespace galley::serve
