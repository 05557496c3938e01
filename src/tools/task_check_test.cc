// The rules of training/tasks/README.md, each with what passes and what fails.
#include "tools/task_check.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace galley::tools {
namespace {

TaskCase make_case(const std::string& kind, nlohmann::json value, const std::string& prompt = "p") {
  const nlohmann::json json = {{"id", "i"},       {"task", "t"},
                               {"bucket", "b"},   {"prompt", prompt},
                               {"max_tokens", 9}, {"check", {{"kind", kind}, {"value", value}}}};
  return parse_task_case(json.dump()).value();
}

bool passes(const TaskCase& task, std::string_view output) { return judge(task, output).passed; }

TEST(TaskCheck, ExactAndContains) {
  EXPECT_TRUE(passes(make_case("exact", "2 + 2 = 4"), " 2 + 2 = 4\n"));
  EXPECT_FALSE(passes(make_case("exact", "2 + 2 = 4"), "2 + 2 = 4."));
  EXPECT_TRUE(passes(make_case("contains", "red"), "It is red."));
  EXPECT_FALSE(passes(make_case("contains", "red"), "It is Red."));
}

TEST(TaskCheck, OnlyWhatFollowsThinkingCounts) {
  const TaskCase task = make_case("contains", "red", "...<think>");
  EXPECT_TRUE(passes(task, "hm</think>red"));
  EXPECT_FALSE(passes(task, "red</think>blue"));
  EXPECT_FALSE(passes(task, "red"));
}

TEST(TaskCheck, Json) {
  const TaskCase task = make_case("json", {{"a", 1}, {"b", "x"}});
  EXPECT_TRUE(passes(task, R"({"b": "x", "a": 1})"));
  EXPECT_TRUE(passes(task, R"({"b": "x", "a": 1.0})"));
  EXPECT_FALSE(passes(task, R"({"b": "x", "a": true})"));
  EXPECT_FALSE(passes(task, R"({"b": "x"})"));
  EXPECT_EQ(judge(task, R"({"b": 2})").well_formed, true);
  EXPECT_EQ(judge(task, R"([1])").well_formed, false);
  EXPECT_EQ(judge(task, R"({"b": )").well_formed, false);
}

std::string block(const std::string& invokes) {
  return "\n\n<｜DSML｜ calls>\n" + invokes + "\n</｜DSML｜ calls>";
}

std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters + "\n</｜DSML｜ invoke>";
}

std::string parameter(const std::string& name, const std::string& text, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + text + "\">" + value +
         "</｜DSML｜ parameter>";
}

TEST(TaskCheck, ToolCalls) {
  const TaskCase task =
      make_case("tool_call", {{{"name", "f"}, {"arguments", {{"a", "1"}, {"n", 2}}}}});
  const std::string a = parameter("a", "true", "1");
  const std::string n = parameter("n", "false", "2");
  EXPECT_TRUE(passes(task, block(invoke("f", a + "\n" + n))));
  EXPECT_TRUE(passes(task, "Sure." + block(invoke("f", n + "\n" + a))));
  EXPECT_FALSE(passes(task, block(invoke("f", parameter("a", "false", "1") + "\n" + n))));
  EXPECT_FALSE(passes(task, block(invoke("g", a + "\n" + n))));
  EXPECT_FALSE(passes(task, block(invoke("f", a + "\n" + n) + "\n" + invoke("f", a))));
  EXPECT_TRUE(judge(task, block(invoke("g", a))).well_formed.value());
  EXPECT_TRUE(judge(task, block(invoke("g", ""))).well_formed.value());

  for (const std::string& wrong :
       {std::string("plain"), block(""), block(invoke("f", a)) + "more", block(invoke("f", a + n)),
        block(invoke("f", a + "\n" + a)), block(invoke("f", a + "\n")),
        block(invoke("f", parameter("a", "false", "{"))),
        block(invoke("f", parameter("a", "maybe", "1"))),
        block(invoke("f", parameter("a", "true", "<｜DSML｜"))), block(invoke("", a)),
        "｜DSML｜" + block(invoke("f", a))}) {
    EXPECT_FALSE(judge(task, wrong).well_formed.value()) << wrong;
  }
}

TEST(TaskCheck, CasesAreChecked) {
  EXPECT_FALSE(parse_task_case("{}").has_value());
  EXPECT_EQ(
      parse_task_case(R"({"id": "i", "task": "t", "bucket": "b", "prompt": "p", "max_tokens": 3})")
          .error()
          .code,
      ErrorCode::kUnsupported);
  EXPECT_FALSE(parse_task_case(R"({"id": "i", "task": "t", "bucket": "b", "prompt": "p",
      "max_tokens": 3, "check": {"kind": "magic", "value": 1}})")
                   .has_value());
}

}  // namespace
}  // namespace galley::tools
