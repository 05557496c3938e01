// Reads messages and tools from JSON, in the shape of chat completions with
// DeepSeek's additions, as plain values.
//
// Bounded, and errors name the field by its path. Parse the document with
// JsonLimits::keep_order, so that tools are shown to the model as they were
// written. Knows no other field of a request.
#pragma once

#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "serve/conversation.h"

namespace galley::serve {

// [{"role", "content"}, ...]. Content is a string or a list of parts: {"type": "text", "text"} and
// {"type": "image_url", "image_url": {"url"}}. Besides: an assistant's "reasoning_content" (or
// "reasoning"), "tool_calls" and "prefix" or "wo_eos" (its turn goes on), a tool's "tool_call_id",
// a user's "task", and on a first system message "tools" and "response_format".
Result<Conversation> parse_messages(const JsonValue& messages);

// [{"type": "function", "function": {...}}, ...].
Result<std::vector<Tool>> parse_tools(const JsonValue& tools);

// An object that asks for a form of the answer, as the model is shown it: {"type": "json_object"};
// empty for {"type": "text"}. Other forms are kUnsupported.
Result<std::string> parse_response_format(const JsonValue& format);

// A level's name or an integer, 1..100.
Result<int32_t> parse_effort(const JsonValue& value);

}  // namespace galley::serve
