#include "serve/tool_markup.h"

#include <string>

#include "base/json.h"
#include "serve/control_text.h"
#include "serve/python_json.h"

namespace galley::serve {
namespace {

Result<void> write_parameter(std::string_view name, bool is_string, std::string_view value,
                             PromptWriter& writer) {
  TRY(writer.markup(kOpenParameter));
  writer.text(name);
  writer.text(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
  writer.text(value);
  return writer.markup(kCloseParameter);
}

Result<JsonDocument> parse_arguments(std::string_view text) {
  JsonLimits limits;
  limits.keep_order = true;
  return JsonDocument::parse(text, limits);
}

Result<void> write_parameters(const std::string& arguments, PromptWriter& writer) {
  Result<JsonDocument> document = parse_arguments(arguments);
  if (document && document->root().is_string()) {  // some clients encode twice
    document = parse_arguments(std::string(TRY(document->root().as_string())));
  }
  if (!document || !document->root().is_object()) {
    return write_parameter("arguments", true, arguments, writer);
  }
  const JsonValue root = document->root();
  const char* separator = "";
  for (const std::string& key : root.keys()) {
    writer.text(separator);
    const JsonValue value = *root.find(key);
    TRY(value.is_string() ? write_parameter(key, true, *value.as_string(), writer)
                          : write_parameter(key, false, python_json(value), writer));
    separator = "\n";
  }
  return {};
}

}  // namespace

Result<void> write_tools(std::span<const Tool> tools, PromptWriter& writer) {
  TRY(writer.markup(kToolsHead));
  const char* separator = "";
  for (const Tool& tool : tools) {
    writer.text(separator);
    writer.text(tool.definition);
    separator = "\n";
  }
  return writer.markup(kToolsTail);
}

Result<void> write_calls(std::span<const ToolCall> calls, PromptWriter& writer) {
  TRY(writer.markup(kOpenCalls));
  const char* separator = "";
  for (const ToolCall& call : calls) {
    writer.text(separator);
    TRY(writer.markup(kOpenInvoke));
    writer.text(call.name);
    writer.text("\">\n");
    TRY(write_parameters(call.arguments, writer));
    TRY(writer.markup(kCloseInvoke));
    separator = "\n";
  }
  return writer.markup(kCloseCalls);
}

}  // namespace galley::serve
