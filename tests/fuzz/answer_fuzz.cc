// Any bytes as an answer: the first choose the options and the cuts, small ones
// stand for pieces of markup. Events are well-formed, no cut changes them,
// content without tools is what was written, and no call looks whole unless its
// markup says so.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "serve/answer_automaton.h"
#include "serve/answer_marks.h"

namespace {

using namespace galley;
using namespace galley::serve;

// With marks: F8 DSML, F9 <think>, FA </think>.
constexpr std::array<std::string_view, 26> kPieces = {
    "\xF8",
    "\xFA",
    "\xF9",
    "\n\n<\xF8 calls>\n",
    "\n</\xF8 calls>",
    "<\xF8 invoke name=\"f\">\n",
    "\n</\xF8 invoke>",
    "<\xF8 parameter name=\"x\" string=\"true\">",
    "<\xF8 parameter name=\"y\" string=\"false\">",
    "</\xF8 parameter>",
    "<\xF8tool_calls>",
    "</\xF8tool_calls>",
    "<\xF8invoke name=\"",
    "parameter name=\"",
    "\" string=\"true\">",
    "\" string=\"false\">",
    "</\xF8",
    "<\xF8",
    "\n```json\n",
    "```",
    "STOP",
    "{\"a\": [1, true]}",
    "invoke name=\"",
    "\xC3\xA9",
    "\xF0\x9F\x98\x80",
    "\n<\xF8 parameter name=\"z\" string=\"false\">"};

struct Call {
  std::string name;
  std::string arguments;

  bool operator==(const Call&) const = default;
};

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  AnswerFinish finish = AnswerFinish::kFailed;
  std::string stop;

  bool operator==(const Answer&) const = default;
};

void collect(const std::vector<AnswerEvent>& events, Answer& answer, bool& in_call) {
  for (const AnswerEvent& event : events) {
    CHECK(answer.finish == AnswerFinish::kFailed);
    if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) {
      CHECK(!in_call && !reasoning->text.empty());
      answer.reasoning += reasoning->text;
    } else if (const auto* content = std::get_if<ContentDelta>(&event)) {
      CHECK(!in_call && !content->text.empty());
      answer.content += content->text;
    } else if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
      CHECK(!in_call && begin->id == "call_" + std::to_string(answer.calls.size()));
      in_call = true;
      answer.calls.push_back({begin->name, ""});
    } else if (const auto* piece = std::get_if<ToolArgumentsDelta>(&event)) {
      CHECK(in_call);
      answer.calls.back().arguments += piece->text;
    } else if (std::holds_alternative<ToolCallEnd>(event)) {
      CHECK(in_call);
      in_call = false;
    } else if (const auto* finish = std::get_if<FinishEvent>(&event)) {
      CHECK(!in_call);
      answer.finish = finish->reason;
      answer.stop = finish->stop_text;
    }
  }
}

template <class Cut>
Answer parse(std::string_view text, const AnswerOptions& options, Cut cut) {
  AnswerAutomaton automaton(options);
  Answer answer;
  bool in_call = false;
  while (!text.empty()) {
    const size_t bytes = std::min<size_t>(cut(), text.size());
    automaton.push(text.substr(0, bytes));
    collect(automaton.take(), answer, in_call);
    text.remove_prefix(bytes);
  }
  automaton.finish(AnswerFinish::kStop);
  collect(automaton.take(), answer, in_call);
  return answer;
}

bool is_blank(char byte) { return std::string_view(" \n\r\t").find(byte) != std::string::npos; }

// Whether `text` somewhere opens a call of this name and goes on with nothing but blanks and a tag
// that ends it.
bool has_empty_call(std::string_view text, const std::string& name) {
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    std::string_view rest = text.substr(at + name.size());
    if (!rest.starts_with('"')) continue;
    rest.remove_prefix(1);
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    if (!rest.starts_with('>')) continue;
    rest.remove_prefix(1);
    while (!rest.empty() && is_blank(rest[0])) rest.remove_prefix(1);
    if (rest.starts_with("</\xF8")) return true;
    const size_t tag = rest.find_first_not_of("< \xF8");
    if (tag != std::string_view::npos && rest.substr(tag).starts_with("invoke name=\""))
      return true;
  }
  return false;
}

void check_call(const Call& call, std::string_view text) {
  CHECK(!call.name.empty() && call.name.size() <= kCallNameBytesMax);
  CHECK(call.name.find_first_of("\"\n<") == std::string::npos);
  CHECK(is_utf8(call.name) && is_utf8(call.arguments));
  CHECK(call.arguments.starts_with("{"));
  if (call.arguments == "{}") CHECK(has_empty_call(text, call.name));
  JsonLimits limits;
  limits.depth_max = 1000;
  const auto json = JsonDocument::parse(call.arguments, limits);
  if (json) CHECK(json->root().is_object());
  // Closed means whole.
  if (!json) CHECK(call.arguments != "{}");
}

std::string without(std::string_view text, char mark) {
  std::string kept;
  std::copy_if(text.begin(), text.end(), std::back_inserter(kept),
               [&](char byte) { return byte != mark; });
  return kept;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  AnswerOptions options;
  options.start = static_cast<AnswerStart>(data[0] % 3);
  options.tools = (data[0] & 4) == 0;
  options.json = (data[0] & 24) == 24;
  if ((data[0] & 32) != 0) options.stops = {"STOP", "\n\n", "}, "};
  uint32_t cuts = data[1];
  std::string text;
  for (size_t i = 2; i < size; ++i) {
    const uint8_t byte = data[i];
    if (byte == '\n' || byte == '\t' || (byte >= 0x20 && byte < 0x80)) {
      text += static_cast<char>(byte);
    } else {
      text += kPieces[byte % kPieces.size()];
    }
  }
  const Answer whole = parse(text, options, [] { return size_t{1} << 30; });
  const Answer cut = parse(text, options, [&] {
    cuts = cuts * 1664525 + 1013904223;
    return 1 + (cuts >> 24) % 7;
  });
  CHECK(cut == whole);
  CHECK(is_utf8(whole.reasoning) && is_utf8(whole.content));
  for (const Call& call : whole.calls) check_call(call, text);
  CHECK(options.tools || options.start == AnswerStart::kCalls || whole.calls.empty());
  if (whole.finish == AnswerFinish::kStopText) {
    CHECK(std::count(options.stops.begin(), options.stops.end(), whole.stop) == 1);
  } else {
    CHECK((whole.finish == AnswerFinish::kToolCalls) == !whole.calls.empty());
  }
  if (options.start == AnswerStart::kContent && !options.tools && !options.json &&
      options.stops.empty()) {
    const std::string_view led =
        std::string_view(text).substr(std::min(text.find_first_not_of('\n'), text.size()));
    CHECK(whole.content == unmarked(without(led, kEndThinkMark)));
  }
  return 0;
}
