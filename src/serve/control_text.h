// How the control tokens of DeepSeek-V4.1 are spelled (spec/chat.md 1), and the
// texts of its format that hold them. Spellings only: ids are the tokenizer's.
#pragma once

#include <string_view>

namespace galley::serve {

constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kPad = "<｜▁pad▁｜>";
constexpr std::string_view kSystem = "<｜System｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kDsml = "｜DSML｜";
constexpr std::string_view kImage = "<｜deepseek_image｜>";
constexpr std::string_view kFillBegin = "<｜fim▁begin｜>";
constexpr std::string_view kFillHole = "<｜fim▁hole｜>";
constexpr std::string_view kFillEnd = "<｜fim▁end｜>";

// Between the blocks of one turn, and between merged turns.
constexpr std::string_view kBlockSeparator = "\n\n";

constexpr std::string_view kOpenResult = "<tool_result>";
constexpr std::string_view kCloseResult = "</tool_result>";

constexpr std::string_view kEffortHead = "Reasoning Effort: ";
constexpr std::string_view kEffortTail =
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

// Before the JSON of a response format.
constexpr std::string_view kFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

// Around the tools' schemas. What the model was trained with, to the byte: vocabulary_test pins
// the hashes.
constexpr std::string_view kToolsHead =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

constexpr std::string_view kOpenCalls = "\n\n<｜DSML｜ calls>\n";
constexpr std::string_view kCloseCalls = "\n</｜DSML｜ calls>";
constexpr std::string_view kOpenInvoke = "<｜DSML｜ invoke name=\"";
constexpr std::string_view kCloseInvoke = "\n</｜DSML｜ invoke>";
constexpr std::string_view kOpenParameter = "<｜DSML｜ parameter name=\"";
constexpr std::string_view kCloseParameter = "</｜DSML｜ parameter>";

}  // namespace galley::serve
