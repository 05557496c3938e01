#include "tools/task_check.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"
#include "serve/control_text.h"

namespace galley::tools {
namespace {

using nlohmann::json;

using serve::kCloseCalls;
using serve::kCloseInvoke;
using serve::kCloseParameter;
using serve::kDsml;
using serve::kEndThink;
using serve::kOpenCalls;
using serve::kOpenInvoke;
using serve::kOpenParameter;

// Takes `prefix` off the front of `text`, if it is there.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes everything before `mark` and the mark; nothing when it is not there.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return taken;
}

std::optional<json> parse(std::string_view text) {
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

// A name between quotes: not empty, one line.
bool is_name(std::string_view name) {
  return !name.empty() && name.find('\n') == std::string_view::npos;
}

// The parameters of one call, joined by single line feeds.
std::optional<json> parse_parameters(std::string_view body) {
  json arguments = json::object();
  while (!body.empty()) {
    if (!take(body, kOpenParameter)) return std::nullopt;
    const auto name = take_until(body, "\"");
    if (!name || !is_name(*name)) return std::nullopt;
    const bool is_text = take(body, " string=\"true\">");
    if (!is_text && !take(body, " string=\"false\">")) return std::nullopt;
    const auto text = take_until(body, kCloseParameter);
    if (!text || text->find(kDsml) != std::string_view::npos) return std::nullopt;
    if (arguments.contains(*name)) return std::nullopt;
    std::optional<json> value = is_text ? json(*text) : parse(*text);
    if (!value) return std::nullopt;
    arguments[std::string(*name)] = std::move(*value);
    if (!body.empty() && (!take(body, "\n") || body.empty())) return std::nullopt;
  }
  return arguments;
}

// [{"name", "arguments"}] of the one block that ends `output`; nothing if it is not well-formed.
std::optional<json> parse_calls(std::string_view output) {
  const auto content = take_until(output, kOpenCalls);
  if (!content || content->find(kDsml) != std::string_view::npos) return std::nullopt;
  if (!output.ends_with(kCloseCalls)) return std::nullopt;
  output.remove_suffix(kCloseCalls.size());
  json calls = json::array();
  while (true) {
    if (!take(output, kOpenInvoke)) return std::nullopt;
    const auto name = take_until(output, "\"");
    if (!name || !is_name(*name) || !take(output, ">\n")) return std::nullopt;
    const auto body = take_until(output, kCloseInvoke);
    if (!body) return std::nullopt;
    std::optional<json> arguments = parse_parameters(*body);
    if (!arguments) return std::nullopt;
    calls.push_back({{"name", *name}, {"arguments", std::move(*arguments)}});
    if (output.empty()) return calls;
    if (!take(output, "\n")) return std::nullopt;
  }
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

Result<CheckKind> parse_kind(const JsonValue& value) {
  const std::string_view name = TRY(value.as_string());
  if (name == "exact") return CheckKind::kExact;
  if (name == "contains") return CheckKind::kContains;
  if (name == "json") return CheckKind::kJson;
  if (name == "tool_call") return CheckKind::kToolCall;
  return value.error("must be exact, contains, json or tool_call");
}

Result<std::string> text_at(const JsonValue& object, std::string_view key) {
  const JsonValue field = TRY(object.at(key));
  return std::string(TRY(field.as_string()));
}

}  // namespace

Result<TaskCase> parse_task_case(std::string_view line) {
  const JsonDocument document = TRY(JsonDocument::parse(line));
  const JsonValue root = document.root();
  if (!root.is_object()) return root.error("must be a JSON object");
  TaskCase task;
  task.id = TRY(text_at(root, "id"));
  task.task = TRY(text_at(root, "task"));
  task.bucket = TRY(text_at(root, "bucket"));
  task.prompt = TRY(text_at(root, "prompt"));
  const JsonValue tokens = TRY(root.at("max_tokens"));
  task.output_tokens_max =
      static_cast<int32_t>(TRY(tokens.as_integer(1, std::numeric_limits<int32_t>::max())));
  const std::optional<JsonValue> check = root.find("check");
  if (!check) return Error{ErrorCode::kUnsupported, "case " + task.id + " has no check"};
  const JsonValue kind = TRY(check->at("kind"));
  task.kind = TRY(parse_kind(kind));
  const JsonValue value = TRY(check->at("value"));
  if (task.kind == CheckKind::kExact || task.kind == CheckKind::kContains) {
    task.text = std::string(TRY(value.as_string()));
  } else {
    task.value = std::make_shared<const json>(value.raw());
  }
  return task;
}

Verdict judge(const TaskCase& task, std::string_view output) {
  if (task.prompt.ends_with("<think>") && !take_until(output, kEndThink)) output = "";
  switch (task.kind) {
    case CheckKind::kExact:
      return {stripped(output) == task.text, std::nullopt};
    case CheckKind::kContains:
      return {output.find(task.text) != std::string_view::npos, std::nullopt};
    case CheckKind::kJson: {
      const std::optional<json> value = parse(output);
      return {value && *value == *task.value, value && value->is_object()};
    }
    case CheckKind::kToolCall: {
      const std::optional<json> calls = parse_calls(output);
      return {calls && *calls == *task.value, calls.has_value()};
    }
  }
  return {};
}

}  // namespace galley::tools
