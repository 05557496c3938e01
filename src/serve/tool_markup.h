// Tools and calls as the prompt shows them (spec/chat.md 3, TOOLS and CALLS).
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "serve/conversation.h"
#include "serve/prompt_writer.h"

namespace galley::serve {

Result<void> write_tools(std::span<const Tool> tools, PromptWriter& writer);

// Names and values stand unescaped; arguments that are no JSON object, even when decoded twice,
// become one parameter "arguments".
Result<void> write_calls(std::span<const ToolCall> calls, PromptWriter& writer);

}  // namespace galley::serve
