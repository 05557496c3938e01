// Requests of the conversational APIs: what becomes of messages, tools, thinking
// and settings, that all of them mean the same, and that every refusal names its
// field in a clear sentence.
#include "serve/api_request.h"

#include <gtest/gtest.h>

#include "serve/api_json.h"

namespace galley::serve {
namespace {

using Parse = Result<ApiRequest> (*)(std::string_view, const RequestDefaults&);

Result<ApiRequest> parse_messages_body(std::string_view body, const RequestDefaults& defaults) {
  return parse_messages_request(body, defaults);
}

std::string failure(Parse parse, std::string_view body) {
  const auto request = parse(body, {});
  if (request) return "accepted";
  const ApiError error = api_error(request.error());
  return std::string(fault_code(error.fault)) + " [" + error.param + "] " + error.message;
}

// Roles and texts, as "user:Hi".
std::vector<std::string> turns(const ApiRequest& request) {
  constexpr const char* kNames[] = {"system:", "user:", "assistant:", "tool:", "reminder:"};
  std::vector<std::string> all;
  for (const Message& message : request.conversation->messages) {
    std::string text = kNames[static_cast<int>(message.role)];
    if (!message.reasoning.empty()) text += "(" + message.reasoning + ")";
    for (const ContentPart& part : message.content) text += part.data;
    for (const ToolCall& call : message.calls) {
      text += "<" + call.id + " " + call.name + " " + call.arguments + ">";
    }
    if (!message.call_id.empty()) text += "=" + message.call_id;
    if (message.continues) text += "...";
    all.push_back(std::move(text));
  }
  return all;
}

// One conversation, told to three APIs.
constexpr const char* kChatTold =
    R"({"model":"m","max_tokens":5,"messages":[{"role":"system","content":"S"},
    {"role":"user","content":[{"type":"text","text":"Hi"}]},
    {"role":"assistant","content":"ok","reasoning_content":"r","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": 2}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"done"},{"role":"user","content":"and?"}],
    "tools":[{"type":"function","function":
      {"name":"f","description":"d","parameters":{"type":"object","b":1,"a":2}}}]})";
constexpr const char* kMessagesTold =
    R"({"model":"m","max_tokens":5,"system":[{"type":"text","text":"S","cache_control":{}}],
    "messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]},
    {"role":"assistant","content":[{"type":"thinking","thinking":"r","signature":"s"},
      {"type":"text","text":"ok"},{"type":"tool_use","id":"c1","name":"f","input":{"b":1,"a":2}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"done"},
      {"type":"text","text":"and?"}]}],
    "tools":[{"name":"f","description":"d","input_schema":{"type":"object","b":1,"a":2}}]})";
constexpr const char* kResponsesTold =
    R"({"model":"m","max_output_tokens":5,"instructions":"S","input":[
    {"role":"user","content":[{"type":"input_text","text":"Hi"}]},
    {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"ok"}]},
    {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"b\": 1, \"a\": 2}"},
    {"type":"function_call_output","call_id":"c1","output":"done"},
    {"role":"user","content":"and?"}],
    "tools":[{"type":"function","name":"f","description":"d",
      "parameters":{"type":"object","b":1,"a":2}}]})";

TEST(ApiRequest, AllApisTellTheSameConversation) {
  const std::vector<std::string> expected = {"system:S", "user:Hi",
                                             R"(assistant:(r)ok<c1 f {"b": 1, "a": 2}>)",
                                             "tool:done=c1", "user:and?"};
  const std::pair<Parse, const char*> told[] = {{parse_chat_request, kChatTold},
                                                {parse_messages_body, kMessagesTold},
                                                {parse_responses_request, kResponsesTold}};
  for (const auto& [parse, body] : told) {
    const auto request = parse(body, {});
    ASSERT_TRUE(request) << request.error().message;
    EXPECT_EQ(turns(*request), expected);
    ASSERT_EQ(request->conversation->tools.size(), 1U);
    EXPECT_EQ(request->conversation->tools[0].definition,
              R"({"name": "f", "description": "d", "parameters": {"type": "object", "b": 1, )"
              R"("a": 2}})");
    EXPECT_EQ(request->output_tokens_max, 5);
    EXPECT_EQ(request->model, "m");
    EXPECT_TRUE(request->conversation->thinking);
    EXPECT_EQ(request->conversation->effort, kEffortDefault);
    EXPECT_TRUE(request->ignored_fields.empty());
  }
}

// {body of a chat request after its messages, thinking, effort}.
TEST(ApiRequest, ThinkingHasOneMeaning) {
  const std::tuple<const char*, bool, int> cases[] = {
      {"", true, 75},
      {R"(,"thinking":{"type":"disabled"})", false, 75},
      {R"(,"thinking":{"type":"disabled"},"reasoning_effort":"max")", false, 100},
      {R"(,"reasoning_effort":"none")", false, 75},
      {R"(,"reasoning_effort":"minimal")", true, 50},
      {R"(,"reasoning_effort":"medium")", true, 75},
      {R"(,"reasoning_effort":7)", true, 7},
      {R"(,"chat_template_kwargs":{"enable_thinking":false})", false, 75},
      {R"(,"thinking":{"type":"adaptive"})", true, 75},
  };
  for (const auto& [fields, thinking, effort] : cases) {
    const auto request = parse_chat_request(
        std::string(R"({"messages":[{"role":"user","content":"a"}])") + fields + "}", {});
    ASSERT_TRUE(request) << fields;
    EXPECT_EQ(request->conversation->thinking, thinking) << fields;
    EXPECT_EQ(request->conversation->effort, effort) << fields;
  }
  const auto quiet = parse_messages_request(
      R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}]})", {.thinking = false});
  EXPECT_FALSE(quiet->conversation->thinking);
}

TEST(ApiRequest, ToolChoice) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":)"
      R"({"name":"f"}}],"tool_choice":)";
  const auto required = parse_chat_request(body + R"("required"})", {});
  ASSERT_TRUE(required);
  EXPECT_EQ(required->conversation->tool_choice, ToolChoice::kRequired);
  EXPECT_FALSE(required->conversation->thinking);  // only a default gives way
  const auto named =
      parse_chat_request(body + R"({"type":"function","function":{"name":"f"}}})", {});
  EXPECT_EQ(named->conversation->chosen_tool, "f");
  EXPECT_EQ(failure(parse_chat_request, body + R"("required","reasoning_effort":"high"})"),
            "unsupported_feature [tool_choice] tool_choice: a tool can only be required without "
            "thinking; switch thinking off or set tool_choice to auto");
  EXPECT_EQ(failure(parse_chat_request, body + R"({"type":"function","function":{"name":"g"}}})"),
            "invalid_value [tool_choice.function.name] tool_choice.function.name: names a tool "
            "that is not among the tools: \"g\"");
  const auto any = parse_messages_request(
      R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],"tools":[{"name":"f",)"
      R"("input_schema":{}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true}})",
      {});
  ASSERT_TRUE(any);
  EXPECT_EQ(any->conversation->tool_choice, ToolChoice::kRequired);
  EXPECT_TRUE(any->one_tool_call);
}

TEST(ApiRequest, ChatSettings) {
  const auto request = parse_chat_request(
      R"({"messages":[{"role":"user","content":"Give json"},{"role":"assistant","content":"{",)"
      R"("prefix":true}],"max_tokens":3,"max_completion_tokens":4,"n":2,"stop":"x",)"
      R"("logprobs":true,"top_logprobs":3,"response_format":{"type":"json_object"},)"
      R"("parallel_tool_calls":false,"user_id":"u","service_tier":"flex","presence_penalty":1})",
      {});
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->output_tokens_max, 4);
  EXPECT_EQ(request->n, 2);
  EXPECT_EQ(request->sampling.top_logprobs, 3);
  EXPECT_EQ(request->conversation->response_format, R"({"type": "json_object"})");
  EXPECT_TRUE(request->one_tool_call);
  EXPECT_EQ(request->user, "u");
  EXPECT_EQ(request->priority, engine::Priority::kBatch);
  EXPECT_EQ(turns(*request).back(), "assistant:{...");
}

TEST(ApiRequest, ChatRefusals) {
  const auto chat = [](const std::string& fields) {
    return failure(parse_chat_request,
                   R"({"messages":[{"role":"user","content":"a"}])" + fields + "}");
  };
  EXPECT_EQ(chat(R"(,"response_format":{"type":"json_schema","json_schema":{}})"),
            "unsupported_feature [response_format.type] response_format.type: only text and "
            "json_object are supported yet, not \"json_schema\"");
  EXPECT_EQ(chat(R"(,"response_format":{"type":"json_object"})"),
            "invalid_value [response_format] response_format: json_object needs a message that "
            "asks for JSON by that word, or the model may go on without end");
  EXPECT_EQ(chat(R"(,"functions":[{}])"),
            "unsupported_feature [functions] functions: is the old form and not supported; use "
            "tools and tool_choice");
  EXPECT_EQ(chat(R"(,"top_logprobs":3)"),
            "invalid_value [top_logprobs] top_logprobs: needs logprobs to be true");
  EXPECT_EQ(chat(R"(,"modalities":["audio"])"),
            "unsupported_feature [modalities[0]] modalities[0]: only text is supported");
  EXPECT_EQ(chat(R"(,"reasoning_effort":"lots")"),
            "invalid_value [reasoning_effort] reasoning_effort: must be low, high, max or an "
            "integer in 1..100");
  EXPECT_EQ(chat(R"(,"tool_choice":"required")"),
            "invalid_value [tool_choice] tool_choice: needs tools, and there are none");
  EXPECT_EQ(chat(R"(,"tools":{"f":{}})"), "invalid_value [tools] tools: must be a list of tools");
  EXPECT_EQ(chat(R"(,"tools":true)"), "invalid_value [tools] tools: must be a list of tools");
  EXPECT_EQ(chat(R"(,"tools":[{"type":"function","function":{"name":"f","parameters":"x"}}])"),
            "invalid_value [tools[0].function.parameters] tools[0].function.parameters: must be a "
            "JSON schema, which is an object");
  EXPECT_EQ(chat(R"(,"logit_bias":{"-5":1})"),
            "invalid_value [logit_bias] logit_bias: has a key that is no token id: \"-5\"");
  EXPECT_EQ(failure(parse_chat_request,
                    R"({"messages":[{"role":"assistant","tool_calls":[
                        {"id":"1","function":{"name":"","arguments":"{}"}}]}]})"),
            "invalid_value [messages[0].tool_calls[0].function.name] "
            "messages[0].tool_calls[0].function.name: is empty or has a quote or a line feed");
  EXPECT_EQ(failure(parse_chat_request, " \n"),
            "invalid_value [] the body is empty; it must be a JSON object");
  EXPECT_EQ(failure(parse_chat_request, "{}"), "invalid_value [messages] messages: missing");
  EXPECT_EQ(failure(parse_chat_request,
                    R"({"messages":[{"role":"tool","tool_call_id":"x","content":""}]})"),
            "invalid_value [messages[0]] messages[0]: tool call \"x\" is none of the previous "
            "assistant message, or already has a result");
}

TEST(ApiRequest, MessagesRefusalsAndCounting) {
  const auto told = [](const std::string& fields) {
    return failure(parse_messages_body, R"({"messages":[{"role":"user","content":"a"}])" + fields);
  };
  EXPECT_EQ(told("}"), "invalid_value [max_tokens] max_tokens: missing");
  EXPECT_TRUE(parse_messages_request(R"({"messages":[{"role":"user","content":"a"}]})", {},
                                     MessagesUse::kCount));
  EXPECT_EQ(told(R"(,"max_tokens":1,"output_config":{"format":{"type":"json_schema"}}})"),
            "unsupported_feature [output_config.format] output_config.format: structured output "
            "is not supported yet");
  EXPECT_EQ(failure(parse_messages_body, R"({"max_tokens":1,"messages":[{"role":"user","content":[)"
                                         R"({"type":"document"}]}]})"),
            "unsupported_feature [messages[0].content[0]] messages[0].content[0]: content of type "
            "document is not supported");
  EXPECT_EQ(failure(parse_messages_body,
                    R"({"max_tokens":1,"messages":[{"role":"system","content":"a"}]})"),
            "invalid_value [messages[0].role] messages[0].role: must be user or assistant; a "
            "system prompt is the field system");
  const auto begun = parse_messages_request(
      R"({"max_tokens":1,"messages":[{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":"b"}],"metadata":{"user_id":"u"},"thinking":)"
      R"({"type":"enabled","budget_tokens":1024},"tools":[{"type":"web_search_20250305"}]})",
      {});
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(turns(*begun).back(), "assistant:b...");
  EXPECT_EQ(begun->user, "u");
  EXPECT_EQ(ignored_fields_warning(*begun),
            R"(199 galley "ignored fields: tools[0], thinking.budget_tokens")");
}

TEST(ApiRequest, ResponsesItemsAndState) {
  const auto request = parse_responses_request(
      R"({"input":[{"type":"custom_tool_call","call_id":"c","name":"patch","input":"a\"b"},
      {"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"o"}]}],
      "tools":[{"type":"custom","name":"patch","format":{"type":"grammar"}},
        {"type":"namespace","name":"web","description":"W","tools":[
          {"type":"function","name":"get","parameters":{}}]},{"type":"web_search"}],
      "store":true,"include":["reasoning.encrypted_content"],"reasoning":{"effort":"low",
      "summary":"auto"},"temperature":0.5})",
      {});
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(turns(*request),
            (std::vector<std::string>{R"(assistant:<c patch {"input": "a\"b"}>)", "tool:o=c"}));
  EXPECT_EQ(request->conversation->tools[1].name, "web::get");
  EXPECT_EQ(request->text_tools, std::vector<std::string>{"patch"});
  EXPECT_EQ(
      ignored_fields_warning(*request),
      R"(199 galley "ignored fields: store, tools[0].format, tools[2], include[0], reasoning.summary")");
  const Json settings = Json::parse(request->settings_json);
  EXPECT_EQ(settings["temperature"], 0.5);
  EXPECT_EQ(settings["store"], false);
  EXPECT_EQ(settings["reasoning"]["effort"], "low");
  EXPECT_EQ(settings["tools"].size(), 3U);
  EXPECT_EQ(failure(parse_responses_request, R"({"input":"a","previous_response_id":"r"})"),
            "unsupported_feature [previous_response_id] previous_response_id: is not supported: "
            "nothing is stored here; send the earlier items in input");
  EXPECT_EQ(failure(parse_responses_request, R"({"input":"a","truncation":"auto"})"),
            "unsupported_feature [truncation] truncation: must be disabled: items are never "
            "dropped silently");
  EXPECT_EQ(failure(parse_responses_request, R"({"input":[{"type":"item_reference","id":"x"}]})"),
            "unsupported_feature [input[0]] input[0]: items of type item_reference are not "
            "supported");
}

// With instructions or results in between, the conversation's messages are not those of the
// request: an index would point elsewhere.
TEST(ApiRequest, ToolResultsAreMissedUnderTheFieldOfTheRequest) {
  EXPECT_EQ(failure(parse_messages_body,
                    R"({"max_tokens":1,"system":"s","messages":[{"role":"user","content":[
                        {"type":"tool_result","tool_use_id":"x","content":"a"}]}]})"),
            "invalid_value [messages] messages: tool call \"x\" is none of the previous assistant "
            "message, or already has a result");
  EXPECT_EQ(failure(parse_responses_request,
                    R"({"input":[{"type":"function_call_output","call_id":"x","output":"a"}]})"),
            "invalid_value [input] input: tool call \"x\" is none of the previous assistant "
            "message, or already has a result");
}

TEST(ApiRequest, WhatWouldChangeTheAnswerIsNotIgnored) {
  for (Parse parse : {Parse(parse_chat_request), Parse(parse_messages_body)}) {
    EXPECT_EQ(failure(parse, R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],
                                 "guided_json":{"type":"object"}})"),
              "unsupported_feature [guided_json] guided_json: is not supported");
    EXPECT_EQ(failure(parse, R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],
                                 "guided_json":null,"stop_token_ids":[]})"),
              "accepted");
    EXPECT_EQ(failure(parse, R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],
                                 "guided_json":{}})"),
              "unsupported_feature [guided_json] guided_json: is not supported");
  }
}

TEST(ApiRequest, ToolsAreCheckedWithTheirPath) {
  const auto told = [](const std::string& tools) {
    return failure(
        parse_messages_body,
        R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],"tools":[)" + tools + "]}");
  };
  EXPECT_EQ(told(R"({"input_schema":{}})"), "invalid_value [tools[0].name] tools[0].name: missing");
  EXPECT_EQ(told(R"({"name":"a\nb"})"),
            "invalid_value [tools[0].name] tools[0].name: has a quote or a line feed");
  EXPECT_EQ(told(R"({"name":"a"},{"name":"a"})"),
            "invalid_value [tools[1].name] tools[1].name: is the name of an earlier tool: \"a\"");
  EXPECT_EQ(told(R"({"name":"a","input_schema":[]})"),
            "invalid_value [tools[0].input_schema] tools[0].input_schema: must be a JSON schema, "
            "which is an object");
}

// As load generators ask for answers of a length.
TEST(ApiRequest, LengthWishes) {
  const auto chat = [](const std::string& more) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"a"}],)" + more + "}", {});
  };
  const auto wished = chat(R"("max_completion_tokens":9,"min_tokens":9,"ignore_eos":true)");
  ASSERT_TRUE(wished) << wished.error().message;
  EXPECT_EQ(wished->output_tokens_min, 9);
  EXPECT_TRUE(wished->ignore_end);
  EXPECT_TRUE(wished->ignored_fields.empty());
  const auto plain = parse_completion_request(R"({"prompt":"a","ignore_eos":false})", {});
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->ignore_end);
  EXPECT_EQ(plain->output_tokens_min, 0);
  EXPECT_EQ(chat(R"("max_tokens":3,"min_tokens":4)").error().message,
            "min_tokens: is 4, more than max_tokens, 3");
  EXPECT_FALSE(chat(R"("min_tokens":-1)"));
  EXPECT_FALSE(chat(R"("ignore_eos":1)"));
}

}  // namespace
}  // namespace galley::serve
