// Any answer, cut anywhere: whole bodies are the same whatever the cuts, and each
// API's stream, put together as its clients do it, is the whole body.
// Prints the seed of what fails.
#include <gtest/gtest.h>

#include <random>

#include "serve/api_answer.h"
#include "serve/api_json.h"

namespace galley::serve {
namespace {

constexpr const char* kPieces[] = {"a", "é", "\"", "\n", "😀", "{", "}", "data: ", "\\", "日本"};

struct Random {
  std::mt19937 engine;
  int below(int n) { return static_cast<int>(engine() % static_cast<uint32_t>(n)); }
};

std::string random_text(Random& random) {
  std::string text;
  for (int i = random.below(6); i >= 0; --i) text += kPieces[random.below(10)];
  return text;
}

// The answer's events, each text whole.
std::vector<AnswerEvent> random_answer(Random& random) {
  std::vector<AnswerEvent> events;
  if (random.below(2) == 0) events.emplace_back(ReasoningDelta{random_text(random)});
  if (random.below(3) != 0) events.emplace_back(ContentDelta{random_text(random)});
  for (int i = random.below(3); i > 0; --i) {
    events.emplace_back(ToolCallBegin{"c" + std::to_string(i), "f"});
    events.emplace_back(ToolArgumentsDelta{json_text(Json{{"x", random_text(random)}})});
    events.emplace_back(ToolCallEnd{});
  }
  const AnswerFinish reasons[] = {AnswerFinish::kStop, AnswerFinish::kLength,
                                  AnswerFinish::kStopText};
  events.emplace_back(FinishEvent{reasons[random.below(3)], "END"});
  return events;
}

template <class Delta>
void push_cut(const Delta& delta, Random& random, std::vector<AnswerEvent>& events) {
  std::string part;
  for (size_t i = 0; i < delta.text.size(); ++i) {
    part += delta.text[i];
    const bool whole = i + 1 == delta.text.size() ||
                       (static_cast<unsigned char>(delta.text[i + 1]) & 0xc0) != 0x80;
    if (!whole || random.below(2) == 0) continue;
    events.emplace_back(Delta{std::exchange(part, "")});
  }
  events.emplace_back(Delta{part});
}

std::vector<AnswerEvent> cut(const std::vector<AnswerEvent>& answer, Random& random) {
  std::vector<AnswerEvent> events;
  for (const AnswerEvent& event : answer) {
    if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) {
      push_cut(*reasoning, random, events);
    } else if (const auto* content = std::get_if<ContentDelta>(&event)) {
      push_cut(*content, random, events);
    } else if (const auto* arguments = std::get_if<ToolArgumentsDelta>(&event)) {
      push_cut(*arguments, random, events);
    } else {
      events.push_back(event);
    }
  }
  return events;
}

std::string encode(Api api, bool stream, const std::vector<AnswerEvent>& events) {
  ApiRequest request;
  request.api = api;
  request.stream = stream;
  request.include_usage = true;
  AnswerHead head;
  head.id = "x";
  head.prompt_tokens = 3;
  AnswerUsage usage;
  usage.prompt_tokens = 3;
  usage.cached_tokens = 1;
  usage.completion_tokens = 4;
  const auto encoder = make_answer_encoder(request, head);
  std::string out;
  encoder->start(out);
  for (const AnswerEvent& event : events) encoder->event(0, event, out);
  encoder->finish(usage, out);
  return out;
}

std::vector<Json> chunks_of(const std::string& stream) {
  std::vector<Json> chunks;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    const std::string frame = stream.substr(at, end - at);
    const std::string data = frame.substr(frame.find("data: ") + 6);
    if (data != "[DONE]") chunks.push_back(Json::parse(data));
    at = end + 2;
  }
  return chunks;
}

// Adds the texts of `delta` to `message` member by member, as OpenAI's clients do.
void merge(const Json& delta, Json& message) {
  for (const auto& [key, value] : delta.items()) {
    if (value.is_string() && message.contains(key) && message[key].is_string()) {
      message[key] = message[key].get<std::string>() + value.get<std::string>();
    } else if (key == "tool_calls") {
      Json& calls = message[key];
      const size_t index = value[0]["index"];
      if (calls.size() <= index) calls.push_back(Json::object());
      Json call = value[0];
      call.erase("index");
      merge(call, calls[index]);
    } else if (value.is_object() && message.contains(key)) {
      merge(value, message[key]);
    } else {
      message[key] = value;
    }
  }
}

Json chat_from(const std::vector<Json>& chunks) {
  Json choice = {{"delta", Json::object()}};
  for (const Json& chunk : chunks) {
    if (chunk["choices"].empty()) {
      choice["usage"] = chunk["usage"];
      continue;
    }
    merge(chunk["choices"][0]["delta"], choice["delta"]);
    choice["finish_reason"] = chunk["choices"][0]["finish_reason"];
  }
  return choice;
}

Json text_from(const std::vector<Json>& chunks) {
  std::string text;
  for (const Json& chunk : chunks) {
    if (!chunk["choices"].empty()) text += chunk["choices"][0]["text"].get<std::string>();
  }
  return text;
}

Json message_from(const std::vector<Json>& events) {
  Json message;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") message["content"].push_back(event["content_block"]);
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
    if (type != "content_block_delta") continue;
    Json& block = message["content"][event["index"].get<size_t>()];
    for (const auto& [key, value] : event["delta"].items()) {
      if (key == "type") continue;
      const std::string before = block.contains(key) ? block[key].get<std::string>() : "";
      block[key] = before + value.get<std::string>();
    }
  }
  for (Json& block : message["content"]) {
    if (!block.contains("partial_json")) continue;
    block["input"] = Json::parse(block["partial_json"].get<std::string>());
    block.erase("partial_json");
  }
  return message;
}

// The stream's last event has the response; its deltas must say the same.
void check_responses(const std::vector<Json>& events, const Json& whole) {
  EXPECT_EQ(events.back()["response"], whole);
  std::vector<std::string> texts;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    const std::string type = events[i]["type"];
    if (type == "response.output_item.added") texts.emplace_back();
    if (type.ends_with(".delta")) texts.back() += events[i]["delta"].get<std::string>();
    if (type.ends_with(".output_item.done")) {
      EXPECT_EQ(events[i]["item"], whole["output"][texts.size() - 1]);
    }
  }
  ASSERT_EQ(texts.size(), whole["output"].size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const Json& item = whole["output"][i];
    const Json& text = item.contains("arguments") ? item["arguments"] : item["content"][0]["text"];
    EXPECT_EQ(text, texts[i]);
  }
}

TEST(ApiAnswerCuts, NeverChangeWhatClientsGet) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{std::mt19937(seed)};
    const std::vector<AnswerEvent> answer = random_answer(random);
    std::string whole[4];
    for (const Api api : {Api::kChat, Api::kCompletions, Api::kResponses, Api::kMessages}) {
      whole[static_cast<int>(api)] = encode(api, false, answer);
      EXPECT_EQ(encode(api, false, cut(answer, random)), whole[static_cast<int>(api)]);
    }
    const auto streamed = [&](Api api) {
      return chunks_of(encode(api, true, cut(answer, random)));
    };
    Json chat = Json::parse(whole[0]);
    Json message = chat["choices"][0]["message"];
    message.erase("refusal");
    if (message["content"].is_null()) message["content"] = "";
    Json from_chunks = chat_from(streamed(Api::kChat));
    // Key order differs: members come as the answer has them.
    EXPECT_EQ(nlohmann::json(from_chunks["delta"]), nlohmann::json(message));
    EXPECT_EQ(from_chunks["finish_reason"], chat["choices"][0]["finish_reason"]);
    EXPECT_EQ(from_chunks["usage"], chat["usage"]);
    EXPECT_EQ(text_from(streamed(Api::kCompletions)), Json::parse(whole[1])["choices"][0]["text"]);
    check_responses(streamed(Api::kResponses), Json::parse(whole[2]));
    EXPECT_EQ(nlohmann::json(message_from(streamed(Api::kMessages))),
              nlohmann::json::parse(whole[3]));
  }
}

}  // namespace
}  // namespace galley::serve
