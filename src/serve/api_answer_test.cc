// What each API's clients read, letter by letter, for one answer that has
// everything: reasoning, text, a call, a finish and usage. Then what must hold for
// any answer: a body does not depend on how its deltas are cut, and a stream read
// as clients read it gives the whole body's texts.
#include "serve/api_answer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "serve/api_json.h"

namespace galley::serve {
namespace {

AnswerHead test_head() {
  AnswerHead head;
  head.id = "x1";
  head.created = 17;
  head.model = "nano";
  head.fingerprint = "fp";
  head.prompt_tokens = 10;
  head.echo_texts = {"Once"};
  return head;
}

AnswerUsage test_usage() {
  AnswerUsage usage;
  usage.prompt_tokens = 10;
  usage.cached_tokens = 8;
  usage.replayed_tokens = 2;
  usage.completion_tokens = 6;
  usage.reasoning_tokens = 1;
  usage.miss_reason = "token_differs";
  return usage;
}

std::vector<AnswerEvent> full_answer() {
  return {ReasoningDelta{"hm"},
          ContentDelta{"a\"b"},
          ToolCallBegin{"c1", "f"},
          ToolArgumentsDelta{R"({"x": 1)"},
          ToolArgumentsDelta{"}"},
          ToolCallEnd{},
          FinishEvent{AnswerFinish::kToolCalls, ""}};
}

AnswerToken token(const char* bytes, float logprob, const char* top = nullptr,
                  float top_logprob = 0) {
  AnswerToken made;
  made.chosen.bytes = bytes;
  made.chosen.logprob = logprob;
  if (top != nullptr) made.top.push_back({top, top_logprob});
  return made;
}

LogprobsDelta told(std::vector<AnswerToken> tokens) {
  LogprobsDelta delta;
  delta.tokens = std::move(tokens);
  return delta;
}

ApiRequest request_of(Api api, bool stream) {
  ApiRequest request;
  request.api = api;
  request.stream = stream;
  request.include_usage = true;
  return request;
}

constexpr const char* kUsage =
    R"({"prompt_tokens":10,"completion_tokens":6,"total_tokens":16,"prompt_tokens_details":)"
    R"({"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":1},"prompt_cache)"
    R"(_hit_tokens":8,"prompt_cache_miss_tokens":2,"galley":{"replayed_tokens":2,"drafted_t)"
    R"(okens":0,"accepted_tokens":0,"cache_miss_reason":"token_differs"}})";
constexpr const char* kExtraUsage =
    R"("galley":{"replayed_tokens":2,"drafted_tokens":0,"accepted_tokens":0,"cache_miss_rea)"
    R"(son":"token_differs"}})";

std::string encode(const ApiRequest& request, const std::vector<AnswerEvent>& events) {
  const auto encoder = make_answer_encoder(request, test_head());
  std::string out;
  encoder->start(out);
  for (const AnswerEvent& event : events) encoder->event(0, event, out);
  encoder->finish(test_usage(), out);
  return out;
}

// The data lines' JSON, without what `strip` removes from each.
std::vector<std::string> data_lines(const std::string& stream, std::string_view strip = "") {
  std::vector<std::string> lines;
  for (size_t at = 0; (at = stream.find("data: ", at)) != std::string::npos;) {
    const size_t end = stream.find("\n\n", at);
    std::string line = stream.substr(at + 6, end - at - 6);
    if (line.starts_with(strip)) line = line.substr(strip.size());
    lines.push_back(std::move(line));
    at = end;
  }
  return lines;
}

TEST(ApiAnswer, ChatWhole) {
  const std::string expected =
      R"({"id":"chatcmpl-x1","object":"chat.completion","created":17,"model":"nano","system)"
      R"(_fingerprint":"fp","choices":[{"index":0,"message":{"role":"assistant","content":")"
      R"(a\"b","refusal":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"fun)"
      R"(ction","function":{"name":"f","arguments":"{\"x\": 1}"}}]},"logprobs":null,"finish)"
      R"(_reason":"tool_calls"}],"usage":)";
  EXPECT_EQ(encode(request_of(Api::kChat, false), full_answer()), expected + kUsage + "}");
}

TEST(ApiAnswer, ChatStream) {
  const std::string head =
      R"({"id":"chatcmpl-x1","object":"chat.completion.chunk","created":17,"model":"nano",")"
      R"(system_fingerprint":"fp","choices":[)";
  const std::string stream = encode(request_of(Api::kChat, true), full_answer());
  EXPECT_TRUE(stream.starts_with("data: {"));
  EXPECT_TRUE(stream.ends_with("\n\ndata: [DONE]\n\n"));
  const std::string tail = R"(,"logprobs":null,"finish_reason":null}],"usage":null})";
  const std::vector<std::string> expected = {
      R"({"index":0,"delta":{"role":"assistant","content":""})" + tail,
      R"({"index":0,"delta":{"reasoning_content":"hm"})" + tail,
      R"({"index":0,"delta":{"content":"a\"b"})" + tail,
      R"({"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function)"
      R"(":{"name":"f","arguments":""}}]})" +
          tail,
      R"({"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\": 1"}})"
      R"(]})" +
          tail,
      R"({"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]})" + tail,
      R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}],"usage":null})",
      std::string(R"(],"usage":)") + kUsage + "}",
      "[DONE]"};
  EXPECT_EQ(data_lines(stream, head), expected);
}

TEST(ApiAnswer, CompletionWholeAndStream) {
  ApiRequest request = request_of(Api::kCompletions, false);
  request.echo = true;
  request.prompts = {{"Once", {}}};
  const std::vector<AnswerEvent> events = {ContentDelta{" up"}, ContentDelta{"on"},
                                           FinishEvent{AnswerFinish::kLength, ""}};
  const std::string head =
      R"({"id":"cmpl-x1","object":"text_completion","created":17,"model":"nano","system_fin)"
      R"(gerprint":"fp","choices":[)";
  EXPECT_EQ(encode(request, events),
            head + R"({"index":0,"text":"Once upon","logprobs":null,"finish_reason":"length"}],)" +
                R"("usage":)" + kUsage + "}");
  request.stream = true;
  request.include_usage = false;
  const std::vector<std::string> expected = {
      R"({"index":0,"text":"Once","logprobs":null,"finish_reason":null}]})",
      R"({"index":0,"text":" up","logprobs":null,"finish_reason":null}]})",
      R"({"index":0,"text":"on","logprobs":null,"finish_reason":null}]})",
      R"({"index":0,"text":"","logprobs":null,"finish_reason":"length"}]})", "[DONE]"};
  EXPECT_EQ(data_lines(encode(request, events), head), expected);
}

TEST(ApiAnswer, ResponsesWholeAndStream) {
  ApiRequest request = request_of(Api::kResponses, false);
  request.settings_json = R"({"truncation":"disabled"})";
  const std::string whole =
      R"({"id":"resp_x1","object":"response","created_at":17,"status":"completed","error":n)"
      R"(ull,"incomplete_details":null,"model":"nano","output":[{"id":"rs_x1_0","type":"rea)"
      R"(soning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}],"status":"c)"
      R"(ompleted"},{"id":"msg_x1_1","type":"message","role":"assistant","content":[{"type")"
      R"(:"output_text","text":"a\"b","annotations":[],"logprobs":[]}],"status":"completed")"
      R"(},{"id":"fc_x1_2","type":"function_call","call_id":"c1","name":"f","arguments":"{\)"
      R"("x\": 1}","status":"completed"}],"truncation":"disabled","usage":{"input_tokens":1)"
      R"(0,"input_tokens_details":{"cached_tokens":8},"output_tokens":6,"output_tokens_deta)"
      R"(ils":{"reasoning_tokens":1},"total_tokens":16,)" +
      std::string(kExtraUsage) + "}";
  EXPECT_EQ(encode(request, full_answer()), whole);
  request.stream = true;
  const std::string stream = encode(request, full_answer());
  EXPECT_TRUE(stream.starts_with("event: response.created\ndata: {"));
  EXPECT_EQ(stream.find("[DONE]"), std::string::npos);
  const std::string empty =
      R"({"id":"resp_x1","object":"response","created_at":17,"status":"in_progress","error")"
      R"(:null,"incomplete_details":null,"model":"nano","output":[],"truncation":"disabled")"
      R"(,"usage":null})";
  const std::vector<std::string> expected = {
      R"(created","response":)" + empty + R"(,"sequence_number":0})",
      R"(in_progress","response":)" + empty + R"(,"sequence_number":1})",
      R"(output_item.added","output_index":0,"item":{"id":"rs_x1_0","type":"reasoning","sum)"
      R"(mary":[],"content":[],"status":"in_progress"},"sequence_number":2})",
      R"(content_part.added","item_id":"rs_x1_0","output_index":0,"content_index":0,"part":)"
      R"({"type":"reasoning_text","text":""},"sequence_number":3})",
      R"(reasoning_text.delta","item_id":"rs_x1_0","output_index":0,"content_index":0,"delt)"
      R"(a":"hm","sequence_number":4})",
      R"(reasoning_text.done","item_id":"rs_x1_0","output_index":0,"content_index":0,"text")"
      R"(:"hm","sequence_number":5})",
      R"(content_part.done","item_id":"rs_x1_0","output_index":0,"content_index":0,"part":{)"
      R"("type":"reasoning_text","text":"hm"},"sequence_number":6})",
      R"(output_item.done","output_index":0,"item":{"id":"rs_x1_0","type":"reasoning","summ)"
      R"(ary":[],"content":[{"type":"reasoning_text","text":"hm"}],"status":"completed"},"s)"
      R"(equence_number":7})",
      R"(output_item.added","output_index":1,"item":{"id":"msg_x1_1","type":"message","role)"
      R"(":"assistant","content":[],"status":"in_progress"},"sequence_number":8})",
      R"(content_part.added","item_id":"msg_x1_1","output_index":1,"content_index":0,"part")"
      R"(:{"type":"output_text","text":"","annotations":[],"logprobs":[]},"sequence_number")"
      R"(:9})",
      R"(output_text.delta","item_id":"msg_x1_1","output_index":1,"content_index":0,"delta")"
      R"(:"a\"b","logprobs":[],"sequence_number":10})",
      R"(output_text.done","item_id":"msg_x1_1","output_index":1,"content_index":0,"text":")"
      R"(a\"b","logprobs":[],"sequence_number":11})",
      R"(content_part.done","item_id":"msg_x1_1","output_index":1,"content_index":0,"part":)"
      R"({"type":"output_text","text":"a\"b","annotations":[],"logprobs":[]},"sequence_numb)"
      R"(er":12})",
      R"(output_item.done","output_index":1,"item":{"id":"msg_x1_1","type":"message","role")"
      R"(:"assistant","content":[{"type":"output_text","text":"a\"b","annotations":[],"logp)"
      R"(robs":[]}],"status":"completed"},"sequence_number":13})",
      R"(output_item.added","output_index":2,"item":{"id":"fc_x1_2","type":"function_call",)"
      R"("call_id":"c1","name":"f","arguments":"","status":"in_progress"},"sequence_number")"
      R"(:14})",
      R"(function_call_arguments.delta","item_id":"fc_x1_2","output_index":2,"delta":"{\"x\)"
      R"(": 1","sequence_number":15})",
      R"(function_call_arguments.delta","item_id":"fc_x1_2","output_index":2,"delta":"}","s)"
      R"(equence_number":16})",
      R"(function_call_arguments.done","item_id":"fc_x1_2","output_index":2,"name":"f","arg)"
      R"(uments":"{\"x\": 1}","sequence_number":17})",
      R"(output_item.done","output_index":2,"item":{"id":"fc_x1_2","type":"function_call",")"
      R"(call_id":"c1","name":"f","arguments":"{\"x\": 1}","status":"completed"},"sequence_)"
      R"(number":18})",
      R"(completed","response":)" + whole + R"(,"sequence_number":19})"};
  EXPECT_EQ(data_lines(stream, R"({"type":"response.)"), expected);
}

TEST(ApiAnswer, MessagesWholeAndStream) {
  const std::string usage =
      R"({"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":8,"out)"
      R"(put_tokens":6,)" +
      std::string(kExtraUsage);
  EXPECT_EQ(encode(request_of(Api::kMessages, false), full_answer()),
            R"({"id":"msg_x1","type":"message","role":"assistant","model":"nano","content":)"
            R"([{"type":"thinking","thinking":"hm","signature":"x1"},{"type":"text","text":)"
            R"("a\"b"},{"type":"tool_use","id":"c1","name":"f","input":{"x":1}}],"stop_reas)"
            R"(on":"tool_use","stop_sequence":null,"usage":)" +
                usage + "}");
  const std::string stream = encode(request_of(Api::kMessages, true), full_answer());
  EXPECT_TRUE(stream.starts_with("event: message_start\ndata: {"));
  const std::vector<std::string> expected = {
      R"(message_start","message":{"id":"msg_x1","type":"message","role":"assistant","model)"
      R"(":"nano","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_toke)"
      R"(ns":10,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens")"
      R"(:0}}})",
      R"(content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","s)"
      R"(ignature":""}})",
      R"(content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}})",
      R"(content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"x1"})"
      R"(})",
      R"(content_block_stop","index":0})",
      R"(content_block_start","index":1,"content_block":{"type":"text","text":""}})",
      R"(content_block_delta","index":1,"delta":{"type":"text_delta","text":"a\"b"}})",
      R"(content_block_stop","index":1})",
      R"(content_block_start","index":2,"content_block":{"type":"tool_use","id":"c1","name")"
      R"(:"f","input":{}}})",
      R"(content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":")"
      R"({\"x\": 1"}})",
      R"(content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":")"
      R"(}"}})",
      R"(content_block_stop","index":2})",
      R"(message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":)" + usage +
          "}",
      R"(message_stop"})"};
  EXPECT_EQ(data_lines(stream, R"({"type":")"), expected);
}

TEST(ApiAnswer, LogprobsRideOnTheNextChunk) {
  ApiRequest request = request_of(Api::kChat, true);
  request.sampling.logprob = true;
  request.include_usage = false;
  const auto encoder = make_answer_encoder(request, test_head());
  std::string out;
  encoder->start(out);
  // Two halves of one code point, then its text: the halves are told as bytes.
  encoder->event(0, told({token("\xc3", -1, "\xc3", -1)}), out);
  encoder->event(0, told({token("\xa9", -2)}), out);
  out.clear();
  encoder->event(0, ContentDelta{"é"}, out);
  EXPECT_EQ(Json::parse(data_lines(out)[0])["choices"][0]["logprobs"]["content"].dump(),
            R"([{"token":"bytes:\\xc3","logprob":-1.0,"bytes":[195],"top_logprobs":)"
            R"([{"token":"bytes:\\xc3","logprob":-1.0,"bytes":[195]}]},)"
            R"({"token":"bytes:\\xa9","logprob":-2.0,"bytes":[169],"top_logprobs":[]}])");
  out.clear();
  encoder->event(0, told({token("", -INFINITY)}), out);
  encoder->event(0, FinishEvent{}, out);
  EXPECT_EQ(Json::parse(data_lines(out)[0])["choices"][0]["logprobs"]["content"].dump(),
            R"([{"token":"","logprob":-9999.0,"bytes":[],"top_logprobs":[]}])");
}

TEST(ApiAnswer, CompletionLogprobsCountCodePoints) {
  ApiRequest request = request_of(Api::kCompletions, false);
  request.sampling.logprob = true;
  request.sampling.top_logprobs = 1;
  const std::string body =
      encode(request, {ContentDelta{"éb"}, told({token("é", -1, "é", -1), token("b", -3, "a", -2)}),
                       FinishEvent{}});
  EXPECT_EQ(Json::parse(body)["choices"][0]["logprobs"].dump(),
            R"({"tokens":["é","b"],"token_logprobs":[-1.0,-3.0],)"
            R"("top_logprobs":[{"é":-1.0},{"a":-2.0}],"text_offset":[0,1]})");
}

TEST(ApiAnswer, ACallThatWasCutOffIsNeverAnEmptyOne) {
  const std::vector<AnswerEvent> cut = {ToolCallBegin{"c1", "rm"},
                                        ToolArgumentsDelta{R"({"p": "/)"},
                                        FinishEvent{AnswerFinish::kLength, ""}};
  const Json messages = Json::parse(encode(request_of(Api::kMessages, false), cut));
  EXPECT_EQ(messages["content"][0]["input"].dump(), R"({"invalid_arguments":"{\"p\": \"/"})");
  EXPECT_EQ(messages["stop_reason"], "max_tokens");
  const Json chat = Json::parse(encode(request_of(Api::kChat, false), cut));
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], R"({"p": "/)");
  const Json response = Json::parse(encode(request_of(Api::kResponses, false), cut));
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  // Nesting that could exhaust the stack is shown, not built.
  const std::string deep(100000, '[');
  const std::vector<AnswerEvent> nested = {ToolCallBegin{"c1", "f"},
                                           ToolArgumentsDelta{"{\"a\":" + deep}, FinishEvent{}};
  EXPECT_NE(encode(request_of(Api::kMessages, false), nested).find("invalid_arguments"),
            std::string::npos);
}

TEST(ApiAnswer, OneToolCallMeansOne) {
  ApiRequest request = request_of(Api::kChat, false);
  request.one_tool_call = true;
  const Json body = Json::parse(
      encode(request, {ToolCallBegin{"c1", "f"}, ToolCallEnd{}, ToolCallBegin{"c2", "g"},
                       ToolCallEnd{}, ContentDelta{"x"}, FinishEvent{}}));
  EXPECT_EQ(body["choices"][0]["message"]["tool_calls"].size(), 1U);
  EXPECT_TRUE(body["choices"][0]["message"]["content"].is_null());
}

TEST(ApiAnswer, TextToolsAndNamespaces) {
  ApiRequest request = request_of(Api::kResponses, false);
  request.text_tools = {"patch"};
  request.tool_namespaces = {"web"};
  const std::vector<AnswerEvent> events = {ToolCallBegin{"c1", "patch"},
                                           ToolArgumentsDelta{R"({"input": "a\nb"})"},
                                           ToolCallEnd{},
                                           ToolCallBegin{"c2", "web::get"},
                                           ToolArgumentsDelta{"{}"},
                                           ToolCallEnd{},
                                           ToolCallBegin{"c3", "a::b"},
                                           ToolCallEnd{},
                                           FinishEvent{}};
  const Json output = Json::parse(encode(request, events))["output"];
  EXPECT_EQ(output[0].dump(),
            R"({"id":"ctc_x1_0","type":"custom_tool_call","call_id":"c1","name":"patch",)"
            R"("input":"a\nb","status":"completed"})");
  EXPECT_EQ(output[1].dump(),
            R"({"id":"fc_x1_1","type":"function_call","call_id":"c2","namespace":"web",)"
            R"("name":"get","arguments":"{}","status":"completed"})");
  EXPECT_EQ(output[2]["name"], "a::b");
}

TEST(ApiAnswer, StopTextAndFailure) {
  const std::vector<AnswerEvent> stopped = {ContentDelta{"a"},
                                            FinishEvent{AnswerFinish::kStopText, "END"}};
  const Json messages = Json::parse(encode(request_of(Api::kMessages, false), stopped));
  EXPECT_EQ(messages["stop_reason"], "stop_sequence");
  EXPECT_EQ(messages["stop_sequence"], "END");
  for (const Api api : {Api::kChat, Api::kCompletions, Api::kResponses, Api::kMessages}) {
    const auto encoder = make_answer_encoder(request_of(api, true), test_head());
    std::string out;
    encoder->start(out);
    encoder->event(0, ContentDelta{"a"}, out);
    encoder->fail({ApiFault::kInternal, "the model stopped", ""}, out);
    const size_t length = out.size();
    encoder->finish(test_usage(), out);  // too late: a stream ends once
    encoder->event(0, ContentDelta{"b"}, out);
    EXPECT_EQ(out.size(), length);
    EXPECT_NE(out.find("the model stopped"), std::string::npos);
    EXPECT_EQ(out.find("[DONE]") != std::string::npos,
              api == Api::kChat || api == Api::kCompletions);
  }
}

TEST(ApiAnswer, CommentsCannotBreakTheStream) {
  std::string out;
  append_sse_comment(out, "prefill 3\ndata: x");
  EXPECT_EQ(out, ": prefill 3 data: x\n\n");
}

}  // namespace
}  // namespace galley::serve
