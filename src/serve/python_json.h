// JSON text as Python's json.dumps(value, ensure_ascii=False) writes it: ", "
// and ": " between parts, other than ASCII as it is, Python's forms of numbers.
// The model learned tools and arguments in this form (spec/chat.md 3).
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace galley::serve {

// Keys in the order of JsonValue::keys(). Integers beyond 64 bits read as numbers with a point.
std::string python_json(const JsonValue& value);

// The string with its quotes.
std::string python_json_string(std::string_view text);

// Appends what stands between the quotes.
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace galley::serve
