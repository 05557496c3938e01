#include "serve/answer_writer.h"

namespace galley::serve {
namespace {

// To the last event if it is of this kind, otherwise to a new one.
template <class Delta>
void append(std::string_view text, std::vector<AnswerEvent>& events) {
  if (text.empty()) return;
  if (events.empty() || !std::holds_alternative<Delta>(events.back())) {
    events.emplace_back(std::in_place_type<Delta>);
  }
  std::get<Delta>(events.back()).text += text;
}

}  // namespace

void AnswerWriter::reasoning(std::string_view text) { append<ReasoningDelta>(text, events_); }
void AnswerWriter::content(std::string_view text) { append<ContentDelta>(text, events_); }
void AnswerWriter::arguments(std::string_view json) { append<ToolArgumentsDelta>(json, events_); }

void AnswerWriter::begin_call(std::string_view name) {
  events_.emplace_back(std::in_place_type<ToolCallBegin>);
  ToolCallBegin& begin = std::get<ToolCallBegin>(events_.back());
  begin.id = call_id_prefix_;
  begin.id += std::to_string(calls_++);
  begin.name = name;
}

void AnswerWriter::end_call() { events_.emplace_back(std::in_place_type<ToolCallEnd>); }

void AnswerWriter::finish(FinishEvent event) {
  events_.emplace_back(std::in_place_type<FinishEvent>, std::move(event));
}

}  // namespace galley::serve
