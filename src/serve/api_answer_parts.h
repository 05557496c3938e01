// What the encoders of the APIs share: answers put together from their deltas,
// log-probabilities that wait for text to ride on, usage and finish names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/answer_event.h"
#include "serve/api_answer.h"
#include "serve/api_json.h"

namespace galley::serve {

enum class BlockKind : uint8_t { kReasoning, kContent, kToolCall };

// A run of one kind within an answer, or one tool call.
struct AnswerBlock {
  BlockKind kind = BlockKind::kContent;
  std::string text;  // of a call: its arguments
  std::string call_id;
  std::string name;
  bool is_cut = false;  // the answer ended inside it, not by itself
};

// The value of a call's arguments: an object, or nothing when the text spells none that is within
// bounds, as of a call that was cut off.
std::optional<Json> arguments_object(const std::string& arguments);

// Hears how one answer's blocks grow. At most one is open at a time.
class BlockListener {
 public:
  virtual ~BlockListener() = default;
  virtual void opened(const AnswerBlock& block, size_t index) = 0;
  virtual void grew(const AnswerBlock& block, size_t index, std::string_view delta) = 0;
  virtual void closed(const AnswerBlock& block, size_t index) = 0;
};

struct FoldOptions {
  bool one_tool_call = false;  // take nothing but the finish after the first call
  bool keep_text = true;       // blocks remember their text
};

// One answer, put together. Empty deltas open nothing.
class AnswerFold {
 public:
  explicit AnswerFold(FoldOptions options) : options_(options) {}

  // Tells `listener` what came of it, when there is one.
  void push(const AnswerEvent& event, BlockListener* listener);
  bool finished() const { return finished_; }
  const FinishEvent& finish() const { return finish_; }

  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  // The texts of all blocks of a kind, joined.
  std::string joined(BlockKind kind) const;
  bool has_calls() const;
  // Log-probabilities that came since the last time; gone from here afterwards.
  std::vector<AnswerToken> take_tokens(BlockKind kind);

 private:
  AnswerBlock& open(BlockKind kind, BlockListener* listener);
  void grow(BlockKind kind, std::string_view delta, BlockListener* listener);
  void close(BlockListener* listener);

  FoldOptions options_;
  bool is_open_ = false;  // the last block
  bool sealed_ = false;   // takes no more blocks
  bool finished_ = false;
  std::vector<AnswerBlock> blocks_;
  std::vector<AnswerToken> content_tokens_;
  std::vector<AnswerToken> reasoning_tokens_;
  FinishEvent finish_;
};

// The part of an encoder that no API differs in: folds one answer for each choice
// and hands on what to write, where to.
class FoldingEncoder : public AnswerEncoder, protected BlockListener {
 public:
  void start(std::string& out) final;
  void event(int32_t choice, const AnswerEvent& event, std::string& out) final;
  void finish(const AnswerUsage& usage, std::string& out) final;
  void fail(const ApiError& error, std::string& out) final;

 protected:
  FoldingEncoder(const ApiRequest& request, AnswerHead head, bool keep_text);

  // Streams: what comes first, when the current choice has finished, what comes last, and what
  // comes instead when the request fails.
  virtual void begin() = 0;
  virtual void choice_finished() = 0;
  virtual void end(const AnswerUsage& usage) = 0;
  virtual void broken(const ApiError& error) = 0;
  // The whole body.
  virtual std::string whole(const AnswerUsage& usage) = 0;

  const AnswerHead& head() const { return head_; }
  std::vector<AnswerFold>& folds() { return folds_; }
  const std::vector<AnswerFold>& folds() const { return folds_; }
  AnswerFold& fold() { return folds_[static_cast<size_t>(choice_)]; }
  int32_t choice() const { return choice_; }  // whose event is being handled
  std::string& out() { return *out_; }

 private:
  AnswerHead head_;
  ApiDialect dialect_;
  bool stream_;
  bool ended_ = false;
  std::vector<AnswerFold> folds_;
  int32_t choice_ = 0;
  std::string* out_ = nullptr;  // during a call
};

// The token as JSON clients can hold it: its text, or "bytes:\xNN..." when it is a part of a code
// point.
std::string token_text(std::string_view bytes);
// {"token", "logprob", "bytes", "top_logprobs": [...]} of chat and responses.
Json token_json(const AnswerToken& token);
Json tokens_json(const std::vector<AnswerToken>& tokens);
// JSON has no infinity: the least finite float, as other servers write it.
double finite_logprob(float logprob);

// Usage of chat and plain completions, with DeepSeek's cache fields.
Json openai_usage(const AnswerUsage& usage);
// What only Galley tells: replayed and drafted tokens, the reason of a miss.
Json extra_usage(const AnswerUsage& usage);

// Ended by a limit or a failure rather than by the model or a stop sequence.
bool is_cut_short(AnswerFinish finish);

std::string_view openai_finish(AnswerFinish finish, bool has_calls);

// The encoders, by API.
std::unique_ptr<AnswerEncoder> make_chat_encoder(const ApiRequest& request, AnswerHead head);
std::unique_ptr<AnswerEncoder> make_completion_encoder(const ApiRequest& request, AnswerHead head);
std::unique_ptr<AnswerEncoder> make_responses_encoder(const ApiRequest& request, AnswerHead head);
std::unique_ptr<AnswerEncoder> make_messages_encoder(const ApiRequest& request, AnswerHead head);

}  // namespace galley::serve
