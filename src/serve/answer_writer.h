// Collects an answer's events, joining neighbours of one kind; counts its calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/answer_event.h"

namespace galley::serve {

class AnswerWriter {
 public:
  // A call's id is the prefix and the call's number; the prefix belongs to one answer alone.
  explicit AnswerWriter(std::string call_id_prefix) : call_id_prefix_(std::move(call_id_prefix)) {}

  void reasoning(std::string_view text);
  void content(std::string_view text);
  void begin_call(std::string_view name);
  void arguments(std::string_view json);
  void end_call();
  void finish(FinishEvent event);

  int32_t calls() const { return calls_; }
  // What came since the last time.
  std::vector<AnswerEvent> take() { return std::exchange(events_, {}); }

 private:
  std::string call_id_prefix_;
  int32_t calls_ = 0;
  std::vector<AnswerEvent> events_;
};

}  // namespace galley::serve
