// Takes an answer apart while it is written: reasoning, content, tool calls
// (spec/chat.md 5.2 with the recommendations a to e).
//
// What comes out does not depend on how the answer was cut, only on its bytes.
// Held back is at most what may still turn out to be markup or a stop sequence.
// An answer that never closes its reasoning is all reasoning; what comes after a
// block of calls is dropped. Knows no tokens; control tokens come as marks (answer_marks.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/answer_event.h"
#include "serve/answer_writer.h"
#include "serve/call_reader.h"
#include "serve/codec.h"
#include "serve/json_content.h"
#include "serve/stop_matcher.h"

namespace galley::serve {

// Newlines held back before markup, which swallows them; more are text.
constexpr size_t kHeldNewlinesMax = 4096;

struct AnswerOptions {
  AnswerStart start = AnswerStart::kContent;  // as the prompt says
  bool tools = false;                         // calls are read; otherwise their markup is text
  bool json = false;                          // content is JSON: prose and fences around it go
  std::vector<std::string> stops;             // of the content; none empty
  std::string call_id_prefix = "call_";       // of this answer alone
};

class AnswerAutomaton {
 public:
  explicit AnswerAutomaton(AnswerOptions options);

  void push(std::string_view marked);
  // The end, and why as far as the engine knows: calls and stop sequences know better.
  void finish(AnswerFinish reason);
  // The events since the last time.
  std::vector<AnswerEvent> take() { return writer_.take(); }

  bool in_reasoning() const { return stage_ == Stage::kReasoning; }
  // A stop sequence came: the answer needs nothing more.
  bool stopped() const { return !stop_.empty(); }
  // Nothing that comes will be handed on: a stop sequence, or the end of a block of calls.
  bool done() const { return stage_ == Stage::kDone; }

 private:
  enum class Stage : uint8_t { kReasoning, kContent, kCalls, kDone };

  size_t plain_bytes(std::string_view marked) const;
  void push_byte(char byte);
  void push_plain(char byte);
  void push_calls(char byte);
  void end_reasoning();
  void open_calls();
  void emit(size_t bytes);
  void hand_on(std::string_view text);
  void take_reader_content();

  AnswerWriter writer_;
  CallReader reader_;
  StopMatcher matcher_;
  std::optional<JsonContent> json_;
  bool tools_;
  Stage stage_ = Stage::kContent;
  bool lead_ = true;  // nothing came yet: newlines are dropped
  std::string held_;
  size_t before_markup_ = 0;  // at the end of held_: newlines and perhaps a '<'
  bool angle_ = false;        // held_ ends with '<'
  std::string stop_;
};

}  // namespace galley::serve
