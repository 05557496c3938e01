#include "server/self_test.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

namespace galley::server {
namespace {

constexpr int32_t kPrompts = 2;
constexpr int32_t kPromptTokens = 24;
constexpr int32_t kAnswerTokens = 12;
constexpr int32_t kTopLogprobs = 20;
// Uniform over a vocabulary is far flatter than any model, trained or random.
constexpr float kSpreadMin = 1e-4F;

class Collector : public engine::TokenSink {
 public:
  void on_event(const engine::TokenEvent& event) override {
    const std::lock_guard lock(mutex_);
    if (event.has_token) {
      answer_.tokens.push_back(event.token);
      answer_.logprobs.push_back(event.logprob);
      const auto top = event.top_logprobs;
      answer_.spreads.push_back(top.empty() ? 0.0F : top.front().logprob - top.back().logprob);
    }
    if (event.finish == engine::FinishReason::kNone) return;
    answer_.failed = event.finish == engine::FinishReason::kFailed;
    ended_ = true;
    wake_.notify_all();
  }

  SelfTestAnswer wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return ended_; });
    return answer_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  SelfTestAnswer answer_;
  bool ended_ = false;
};

bool all_same(const std::vector<int32_t>& values) {
  return std::all_of(values.begin(), values.end(), [&](int32_t v) { return v == values.front(); });
}

bool all_same(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [&](float v) { return v == values.front(); });
}

Error degenerate(const std::string& what) {
  return {ErrorCode::kCorrupt, "degenerate output: " + what +
                                   "; this build and machine cannot serve the model: check it "
                                   "with galley doctor and galley verify"};
}

}  // namespace

Result<void> judge_self_test(std::span<const SelfTestAnswer> answers) {
  for (const SelfTestAnswer& answer : answers) {
    if (answer.failed || answer.tokens.empty()) return degenerate("logits that are no numbers");
    if (*std::max_element(answer.spreads.begin(), answer.spreads.end()) < kSpreadMin) {
      return degenerate("all tokens are equally likely at every step");
    }
    if (answer.tokens.size() > 1 && all_same(answer.tokens) && all_same(answer.logprobs)) {
      return degenerate("token " + std::to_string(answer.tokens.front()) +
                        " with one and the same probability at every step");
    }
  }
  const bool same = std::all_of(answers.begin(), answers.end(), [&](const SelfTestAnswer& answer) {
    return answer.logprobs == answers.front().logprobs;
  });
  if (answers.size() > 1 && same) return degenerate("different prompts get the same probabilities");
  return {};
}

Result<void> run_self_test(engine::Engine& engine, int32_t vocab_size) {
  std::vector<std::shared_ptr<Collector>> collectors;
  for (int32_t p = 0; p < kPrompts; ++p) {
    engine::GenerateRequest request;
    request.id = engine.next_id();
    for (int32_t i = 0; i < kPromptTokens; ++i) {
      request.prompt.push_back((17 + 37 * i + 101 * p * (i + 1)) % vocab_size);
    }
    request.output_tokens_max = kAnswerTokens;
    request.sampling.temperature = 0;
    request.sampling.logprob = true;
    request.sampling.top_logprobs = std::min(kTopLogprobs, vocab_size);
    request.cache_namespace = "self-test";
    collectors.push_back(std::make_shared<Collector>());
    TRY(engine.submit(std::move(request), collectors.back()));
  }
  std::vector<SelfTestAnswer> answers;
  for (const auto& collector : collectors) answers.push_back(collector->wait());
  return judge_self_test(answers);
}

}  // namespace galley::server
