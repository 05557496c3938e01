// Answers taken apart: the table of spec/chat.md 7 (P), what models get wrong,
// and that no cut of the answer changes anything.
#include "serve/answer_automaton.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/random.h"
#include "serve/answer_marks.h"

namespace galley::serve {
namespace {

constexpr std::string_view kWeather =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n"
    "<｜DSML｜ parameter name=\"city\" string=\"true\">Paris</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>";

// Control tokens as marks.
std::string marked(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    char mark = '\0';
    for (const char candidate : {kDsmlMark, kThinkMark, kEndThinkMark}) {
      if (text.starts_with(mark_text(candidate))) mark = candidate;
    }
    out += mark == '\0' ? text[0] : mark;
    text.remove_prefix(mark == '\0' ? 1 : mark_text(mark).size());
  }
  return out;
}

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<std::string> calls;  // "name arguments"
  AnswerFinish finish = AnswerFinish::kFailed;

  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "reasoning <" << answer.reasoning << "> content <" << answer.content << ">";
  for (const std::string& call : answer.calls) *out << " call <" << call << ">";
  *out << " finish " << static_cast<int>(answer.finish);
}

void collect(const std::vector<AnswerEvent>& events, Answer& answer) {
  for (const AnswerEvent& event : events) {
    if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) {
      answer.reasoning += reasoning->text;
    } else if (const auto* content = std::get_if<ContentDelta>(&event)) {
      answer.content += content->text;
    } else if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
      EXPECT_EQ(begin->id, "call_" + std::to_string(answer.calls.size()));
      answer.calls.push_back(begin->name + " ");
    } else if (const auto* piece = std::get_if<ToolArgumentsDelta>(&event)) {
      answer.calls.back() += piece->text;
    } else if (const auto* finish = std::get_if<FinishEvent>(&event)) {
      answer.finish = finish->reason;
    }
  }
}

// Cut after `cut(n)` bytes each.
template <class Cut>
Answer parse_cut(std::string_view text, const AnswerOptions& options, Cut cut) {
  AnswerAutomaton automaton(options);
  Answer answer;
  while (!text.empty()) {
    const size_t bytes = std::min<size_t>(cut(), text.size());
    automaton.push(text.substr(0, bytes));
    collect(automaton.take(), answer);
    text.remove_prefix(bytes);
  }
  automaton.finish(AnswerFinish::kStop);
  collect(automaton.take(), answer);
  return answer;
}

// The whole answer at once, after making sure that every size of piece gives the same.
Answer parse(std::string_view text, const AnswerOptions& options) {
  const std::string bytes = marked(text);
  const Answer whole = parse_cut(bytes, options, [] { return size_t{1} << 30; });
  for (const size_t piece : {1, 2, 3, 5, 7, 11, 23}) {
    EXPECT_EQ(parse_cut(bytes, options, [&] { return piece; }), whole) << text;
  }
  return whole;
}

AnswerOptions thinking(bool tools = true) {
  AnswerOptions options;
  options.start = AnswerStart::kReasoning;
  options.tools = tools;
  return options;
}

AnswerOptions chat(bool tools = true) {
  AnswerOptions options;
  options.tools = tools;
  return options;
}

Answer answer(std::string reasoning, std::string content, std::vector<std::string> calls = {}) {
  const AnswerFinish finish = calls.empty() ? AnswerFinish::kStop : AnswerFinish::kToolCalls;
  return {std::move(reasoning), std::move(content), std::move(calls), finish};
}

const std::string kCall = "get_weather {\"city\": \"Paris\", \"days\": 3}";

std::string block(std::string_view inside) {
  return "\n\n<｜DSML｜ calls>\n" + std::string(inside) + "\n</｜DSML｜ calls>";
}

std::string invoke(std::string_view name, std::string_view inside) {
  return "<｜DSML｜ invoke name=\"" + std::string(name) + "\">\n" + std::string(inside) +
         "\n</｜DSML｜ invoke>";
}

std::string parameter(std::string_view name, std::string_view value, bool is_string = true) {
  return "<｜DSML｜ parameter name=\"" + std::string(name) + "\" string=\"" +
         (is_string ? "true" : "false") + "\">" + std::string(value) + "</｜DSML｜ parameter>";
}

TEST(AnswerAutomaton, SpecifiedAnswers) {
  const std::string weather(kWeather);
  EXPECT_EQ(parse("plan</think>Hi." + weather, thinking()), answer("plan", "Hi.", {kCall}));
  EXPECT_EQ(parse("r</think>" + block(invoke("get_weather", parameter("city", "Paris")) + "\n" +
                                      invoke("now", "")),
                  thinking()),
            answer("r", "", {R"(get_weather {"city": "Paris"})", "now {}"}));
  EXPECT_EQ(parse("thinking" + weather, thinking()), answer("thinking", "", {kCall}));
  EXPECT_EQ(parse("r</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
                  "<｜DSML｜ parameter name=\"x\" string=\"true\">ab",
                  thinking()),
            answer("r", "", {"f {\"x\": \"ab"}));
  EXPECT_EQ(
      parse("r</think>" + block(invoke("f", "<｜DSML｜ parameter name=\"x\" string=\"true\">ab\n" +
                                                parameter("y", "1", false))),
            thinking()),
      answer("r", "", {R"(f {"x": "ab", "y": 1})"}));
  EXPECT_EQ(parse("r</think>a" + weather + "tail", thinking()), answer("r", "a", {kCall}));
  EXPECT_EQ(parse("r</think>a</think>b", thinking()), answer("r", "ab"));
  EXPECT_EQ(parse("\n\nr\n\n</think>\n\nans", thinking()), answer("r", "ans"));
  EXPECT_EQ(parse("r</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
                  "<｜DSML｜parameter name=\"x\" string=\"true\">q\"\n</｜DSML｜parameter>\n"
                  "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
                  thinking()),
            answer("r", "", {R"(f {"x": "q\"\n"})"}));
  EXPECT_EQ(parse("r</think>a" + weather, thinking(false)), answer("r", "a" + weather));
  AnswerOptions stops = thinking();
  stops.stops = {"STOP"};
  Answer stopped = answer("r", "abc");
  stopped.finish = AnswerFinish::kStopText;
  EXPECT_EQ(parse("r</think>abcSTOPdef", stops), stopped);
  EXPECT_EQ(parse("rSTOP</think>abSTO", stops), answer("rSTOP", "abSTO"));
  EXPECT_EQ(parse("\nHi", chat()), answer("", "Hi"));
  EXPECT_EQ(parse("only thoughts", thinking()), answer("only thoughts", ""));
  EXPECT_EQ(parse(block(invoke("f", parameter("t", "l1\nl2 \"q\" \\ é"))), chat()),
            answer("", "", {"f {\"t\": \"l1\\nl2 \\\"q\\\" \\\\ é\"}"}));
}

TEST(AnswerAutomaton, JsonMode) {
  AnswerOptions options = thinking();
  options.json = true;
  EXPECT_EQ(parse("r</think>Sure:\n```json\n{\"a\":1}\n```\nok", options),
            answer("r", " {\"a\":1} "));
  EXPECT_EQ(parse("r</think>{\"a\":\n[1]}", options), answer("r", "{\"a\":\n[1]}"));
  EXPECT_EQ(parse("r</think>```\n[1]\n```", options), answer("r", "[1]"));
  EXPECT_EQ(parse("r</think>a ``` b {1}", options), answer("r", " {1}"));
  EXPECT_EQ(parse("r</think>{\"a\": 1}\n``", options), answer("r", "{\"a\": 1}\n``"));
  EXPECT_EQ(parse("r</think>``", options), answer("r", " "));
  options.stops = {"Sure", "}"};
  Answer stopped = answer("r", " {\"a\":1");
  stopped.finish = AnswerFinish::kStopText;
  EXPECT_EQ(parse("r</think>Sure: {\"a\":1}", options), stopped);
}

// A call whose markup is broken is content, or its JSON stays open; it never looks whole.
TEST(AnswerAutomaton, BrokenCallsAreNeverRun) {
  const std::string good = invoke("g", parameter("y", "1", false));
  const std::string good_call = "g {\"y\": 1}";
  // No argument can be read: the call is content, the next one a call.
  for (const std::string& broken :
       {invoke("f", "<｜DSML｜ parametre name=\"x\" string=\"true\">1</｜DSML｜ parametre>"),
        invoke("f", "no markup"), invoke("f", "{\"x\": 1}"),
        invoke("f", "<｜DSML｜ parameter name=\"x\">1</｜DSML｜ parameter>"),
        invoke("f", "<｜DSML｜ parameter name=\"x\ny\" string=\"true\">1</｜DSML｜ parameter>"),
        invoke("f", "<｜DSML｜ parameter name=\"\" string=\"true\">1</｜DSML｜ parameter>"),
        invoke("f\ng", parameter("x", "1")), invoke("", parameter("x", "1")),
        invoke(std::string(300, 'f'), parameter("x", "1"))}) {
    const std::string said = std::string("a").append(block(broken));
    EXPECT_EQ(parse(said, chat()), answer("", said));
    const Answer first = parse(block(broken + "\n" + good), chat());
    EXPECT_EQ(first.calls, std::vector<std::string>{good_call}) << broken;
    EXPECT_NE(first.content.find(broken), std::string::npos);
    const Answer second = parse(block(good + "\n" + broken), chat());
    EXPECT_EQ(second.calls, std::vector<std::string>{good_call}) << broken;
    EXPECT_EQ(second.content, broken);
  }
  // Some argument was handed on already: the object never closes.
  for (const std::string& inside :
       {parameter("x", "1") + "\n" + parameter("x", "2"), parameter("x", "1") + "\njunk",
        parameter("x", "1") + "\n<｜DSML｜ parameter name=\"y\">2</｜DSML｜ parameter>",
        std::string("<｜DSML｜ parameter name=\"x\" string=\"true\">1</｜DSML｜ wrong>")}) {
    const Answer parsed = parse(block(invoke("f", inside) + "\n" + good), chat());
    ASSERT_EQ(parsed.calls.size(), 2U) << inside;
    EXPECT_EQ(parsed.calls[0], "f {\"x\": \"1\"") << inside;
    EXPECT_EQ(parsed.calls[1], good_call);
    EXPECT_EQ(parsed.content, "");
  }
  // A block that is none is content at once, and the text goes on.
  EXPECT_EQ(parse("a <｜DSML｜ calls> b", chat()), answer("", "a <｜DSML｜ calls> b"));
  const std::string empty = std::string("a").append(block("")).append("more");
  EXPECT_EQ(parse(empty, chat()), answer("", empty));
  EXPECT_EQ(parse("a ｜DSML｜ b<", chat()), answer("", "a ｜DSML｜ b<"));
  AnswerAutomaton early(chat());
  early.push(marked("a <｜DSML｜ is a mark\n"));
  Answer so_far;
  collect(early.take(), so_far);
  EXPECT_EQ(so_far.content, "a <｜DSML｜ is a mark");
}

TEST(AnswerAutomaton, RepairsWhatIsClear) {
  // The end of an invoke, of a parameter or of the block is missing.
  EXPECT_EQ(
      parse("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + parameter("x", "1") +
                "\n<｜DSML｜ invoke name=\"g\">\n" + parameter("y", "2") + "\n</｜DSML｜ calls>",
            chat()),
      answer("", "", {R"(f {"x": "1"})", R"(g {"y": "2"})"}));
  EXPECT_EQ(parse(block("<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
                        "string=\"true\">1</｜DSML｜ invoke>"),
                  chat()),
            answer("", "", {R"(f {"x": "1"})"}));
  EXPECT_EQ(parse("\n\n<｜DSML｜ calls>\n" + invoke("f", parameter("x", "1")), chat()),
            answer("", "", {R"(f {"x": "1"})"}));
  // The second tag lacks its mark.
  EXPECT_EQ(parse("2 <" + block(invoke("f", parameter("a", "x</\ny") +
                                                "\n<parameter name=\"b\" string=\"false\">"
                                                "[1,{\"x\":null}]</｜DSML｜ parameter>")),
                  chat()),
            answer("", "2 <", {R"(f {"a": "x</\ny", "b": [1,{"x":null}]})"}));
  // What is no JSON is a string; keys are escaped.
  EXPECT_EQ(
      parse(block(invoke("f", parameter("a", "True", false) + "\n" +
                                  parameter("b", "{\"x\": 1", false) + "\n" +
                                  parameter("c", "", false) + "\n" + parameter("d\\", "é", false))),
            chat()),
      answer("", "", {R"(f {"a": "True", "b": "{\"x\": 1", "c": "", "d\\": "é"})"}));
  // Reasoning that begins twice, and markup of tools right after it.
  EXPECT_EQ(parse("<think>r<think>s</think>c", thinking()), answer("rs", "c"));
  EXPECT_EQ(
      parse("r</think><｜DSML｜ calls>\n" + invoke("f", "") + "\n</｜DSML｜ calls>", thinking()),
      answer("r", "", {"f {}"}));
}

TEST(AnswerAutomaton, ARequiredCallBeginsInsideTheBlock) {
  AnswerOptions options = chat();
  options.start = AnswerStart::kCalls;
  EXPECT_EQ(parse(invoke("f", parameter("x", "1")) + "\n</｜DSML｜ calls>", options),
            answer("", "", {R"(f {"x": "1"})"}));
  EXPECT_EQ(parse("I would rather talk.\nReally.", options),
            answer("", "I would rather talk.\nReally."));
}

TEST(AnswerAutomaton, LooksAlikeOnly) {
  // Unmarked: spelled out of ordinary tokens.
  AnswerAutomaton automaton(thinking());
  automaton.push("a</think>b\n\n<｜DSML｜ calls>");
  automaton.finish(AnswerFinish::kStop);
  Answer got;
  collect(automaton.take(), got);
  EXPECT_EQ(got, answer("a</think>b\n\n<｜DSML｜ calls>", ""));
}

TEST(AnswerAutomaton, WaitsForLittle) {
  const std::string long_value(3 * kCallValueBytesMax, '7');
  const Answer parsed = parse_cut(marked(block(invoke("f", parameter("x", long_value, false)))),
                                  chat(), [] { return size_t{1000}; });
  EXPECT_EQ(parsed.calls, std::vector<std::string>{"f {\"x\": \"" + long_value + "\"}"});
  const std::string blanks(2 * kCallRawBytesMax, ' ');
  EXPECT_EQ(parse("a\n\n<｜DSML｜ calls>" + blanks + "b", chat()).content,
            "a\n\n<｜DSML｜ calls>" + blanks + "b");
  const std::string newlines(3 * kHeldNewlinesMax, '\n');
  EXPECT_EQ(parse("a" + newlines + "b", chat()).content, "a" + newlines + "b");
  AnswerOptions options = thinking();
  options.stops = {"\n\n"};
  Answer stopped = answer("r", "a");
  stopped.finish = AnswerFinish::kStopText;
  EXPECT_EQ(parse("r</think>a" + std::string(kWeather), options), stopped);
}

TEST(AnswerAutomaton, NoCutChangesAnything) {
  const std::vector<std::string> pieces = {"<｜DSML｜ calls>",
                                           "</｜DSML｜ calls>",
                                           "<｜DSML｜ invoke name=\"f\">",
                                           "</｜DSML｜ invoke>",
                                           "<｜DSML｜ parameter name=\"x\" string=\"true\">",
                                           "</｜DSML｜ parameter>",
                                           "\n",
                                           "\n\n",
                                           "<",
                                           "/",
                                           "｜DSML｜",
                                           "</think>",
                                           "<think>",
                                           "a",
                                           "é",
                                           "\"",
                                           "{",
                                           "}",
                                           "[1]",
                                           "```",
                                           "json",
                                           "ST",
                                           "OP",
                                           ">",
                                           " ",
                                           "<｜DSML｜ parameter name=\"y\" string=\"false\">",
                                           "</",
                                           "<｜DSML｜tool_calls>",
                                           "parameter name=\"",
                                           "invoke name=\""};
  int with_calls = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](size_t below) {
      return static_cast<size_t>(random_unit(seed, draws++) * static_cast<double>(below));
    };
    std::string text;
    for (size_t i = draw(30); i > 0; --i) text += pieces[draw(pieces.size())];
    if (draw(3) == 0) text = "t</think>" + block(invoke("f", parameter("x", text)) + text);
    AnswerOptions options;
    options.start = static_cast<AnswerStart>(draw(3));
    options.tools = draw(4) > 0;
    options.json = draw(4) == 0;
    if (draw(2) == 0) options.stops = {"STOP", "\n\n<", "}"};
    const std::string bytes = marked(text);
    const Answer whole = parse_cut(bytes, options, [] { return size_t{1} << 30; });
    const Answer cut = parse_cut(bytes, options, [&] { return 1 + draw(9); });
    ASSERT_EQ(cut, whole) << seed << ": " << text;
    for (const std::string& call : whole.calls) {
      ASSERT_TRUE(call.starts_with("f {")) << seed << ": " << text;
      const size_t at = call.find(' ') + 1;
      const bool closed = JsonDocument::parse(call.substr(at)).has_value();
      with_calls += closed ? 1 : 0;
    }
  }
  EXPECT_GT(with_calls, 1000);
}

}  // namespace
}  // namespace galley::serve
