#include "serve/answer_automaton.h"

#include <algorithm>
#include <utility>

#include "serve/answer_marks.h"

namespace galley::serve {
namespace {

// Marks, and what may stand before one.
constexpr std::string_view kNotPlain = "\n<\xF8\xF9\xFA";

}  // namespace

AnswerAutomaton::AnswerAutomaton(AnswerOptions options)
    : writer_(std::move(options.call_id_prefix)),
      reader_(writer_),
      matcher_(options.json ? std::vector<std::string>{} : options.stops),
      tools_(options.tools) {
  if (options.json) json_.emplace(std::move(options.stops));
  if (options.start == AnswerStart::kReasoning) stage_ = Stage::kReasoning;
  if (options.start != AnswerStart::kCalls) return;
  stage_ = Stage::kCalls;
  reader_.open("");
}

void AnswerAutomaton::push(std::string_view marked) {
  while (!marked.empty()) {
    const size_t plain = plain_bytes(marked);
    if (plain > 0) {
      lead_ = false;
      hand_on(marked.substr(0, plain));
    } else {
      push_byte(marked[0]);
    }
    marked.remove_prefix(std::max<size_t>(plain, 1));
  }
}

// How many of the next bytes can be nothing but text, so that they need no look each.
size_t AnswerAutomaton::plain_bytes(std::string_view marked) const {
  const bool in_text = stage_ == Stage::kReasoning || stage_ == Stage::kContent;
  if (!in_text || !held_.empty() || !matcher_.empty()) return 0;
  return std::min(marked.find_first_of(kNotPlain), marked.size());
}

void AnswerAutomaton::push_byte(char byte) {
  if (stage_ == Stage::kDone) return;
  if (stage_ == Stage::kCalls) return push_calls(byte);
  const bool reasoning = stage_ == Stage::kReasoning;
  if (lead_ && (byte == '\n' || (reasoning && byte == kThinkMark))) return;
  lead_ = false;
  if (byte == kEndThinkMark) {
    if (reasoning) return end_reasoning();
    matcher_.reset();
    return emit(held_.size());  // a stray one vanishes
  }
  if (reasoning && byte == kThinkMark) return emit(held_.size());  // so does a second beginning
  if (byte == kDsmlMark && tools_ && angle_) return open_calls();
  if (!is_mark(byte)) return push_plain(byte);
  for (const char c : mark_text(byte)) push_plain(c);
}

void AnswerAutomaton::push_plain(char byte) {
  if (stage_ == Stage::kDone) return;
  held_ += byte;
  if (byte == '\n' || byte == '<') {
    before_markup_ = angle_ ? 1 : std::min(before_markup_ + 1, kHeldNewlinesMax);
    angle_ = byte == '<';
  } else {
    before_markup_ = 0;
    angle_ = false;
  }
  if (stage_ == Stage::kReasoning) return emit(held_.size() - before_markup_);
  if (std::optional<std::string> stop = matcher_.push(byte)) {
    emit(held_.size() - stop->size());
    held_.clear();
    stop_ = *std::move(stop);
    stage_ = Stage::kDone;
    return;
  }
  emit(held_.size() - std::max(matcher_.partial(), before_markup_));
}

void AnswerAutomaton::push_calls(char byte) {
  const CallReader::State state = reader_.push(byte);
  if (state == CallReader::State::kDone) stage_ = Stage::kDone;
  if (state == CallReader::State::kContent) stage_ = Stage::kContent;
  take_reader_content();
}

// The newlines before the end of reasoning belong to neither side.
void AnswerAutomaton::end_reasoning() {
  emit(held_.size() - (angle_ ? 0 : before_markup_));
  held_.clear();
  before_markup_ = 0;
  angle_ = false;
  stage_ = Stage::kContent;
  lead_ = true;
}

void AnswerAutomaton::open_calls() {
  emit(held_.size() - before_markup_);
  if (stage_ == Stage::kDone) return;
  const std::string opening = std::exchange(held_, "") + kDsmlMark;
  before_markup_ = 0;
  angle_ = false;
  matcher_.reset();
  reader_.open(opening);
  stage_ = Stage::kCalls;
}

// Hands on the first bytes of what is held.
void AnswerAutomaton::emit(size_t bytes) {
  const std::string ready = held_.substr(0, bytes);
  held_.erase(0, bytes);
  before_markup_ = std::min(before_markup_, held_.size());
  if (before_markup_ == 0) angle_ = false;
  hand_on(ready);
}

void AnswerAutomaton::hand_on(std::string_view text) {
  if (stage_ == Stage::kReasoning) return writer_.reasoning(text);
  if (!json_) return writer_.content(text);
  std::string json;
  for (const char byte : text) json_->push(byte, json);
  writer_.content(json);
  if (json_->stop().empty()) return;
  stop_ = json_->stop();
  stage_ = Stage::kDone;
  held_.clear();
}

// What the reader found to be no call is content, whether or not the block goes on.
void AnswerAutomaton::take_reader_content() {
  const Stage stage = std::exchange(stage_, Stage::kContent);
  for (const char byte : reader_.take_content()) push_plain(byte);
  if (stage_ == Stage::kContent) stage_ = stage;
}

void AnswerAutomaton::finish(AnswerFinish reason) {
  if (stage_ == Stage::kCalls) {
    reader_.finish();
    take_reader_content();
  }
  if (stage_ == Stage::kCalls) stage_ = Stage::kContent;
  const bool reasoning = stage_ == Stage::kReasoning;
  if (!stopped()) emit(held_.size());
  if (json_ && !reasoning && !stopped()) {
    std::string rest;
    json_->finish(rest);
    writer_.content(rest);
  }
  stage_ = Stage::kDone;
  FinishEvent event;
  event.reason = reason;
  if (stopped()) {
    event.reason = AnswerFinish::kStopText;
    event.stop_text = stop_;
  } else if (reason == AnswerFinish::kStop && writer_.calls() > 0) {
    event.reason = AnswerFinish::kToolCalls;
  }
  writer_.finish(std::move(event));
}

}  // namespace galley::serve
