#include "serve/codec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/shown_text.h"
#include "serve/control_text.h"
#include "serve/prompt_writer.h"
#include "serve/tool_markup.h"
#include "serve/turns.h"

namespace galley::serve {
namespace {

std::string_view task_token(Task task) {
  switch (task) {
    case Task::kNone:
      break;
    case Task::kAction:
      return "<｜action｜>";
    case Task::kQuery:
      return "<｜query｜>";
    case Task::kAuthority:
      return "<｜authority｜>";
    case Task::kDomain:
      return "<｜domain｜>";
    case Task::kTitle:
      return "<｜title｜>";
    case Task::kReadUrl:
      return "<｜read_url｜>";
  }
  return "";
}

Result<int32_t> required_id(const model::Tokenizer& tokenizer, std::string_view text) {
  if (const std::optional<int32_t> id = tokenizer.added_id(text)) return *id;
  return Error{ErrorCode::kUnsupported, "the tokenizer has no control token " + std::string(text)};
}

// What of the tools the model gets to see.
Result<std::vector<Tool>> offered_tools(const Conversation& conversation) {
  if (conversation.tool_choice == ToolChoice::kNone) return std::vector<Tool>{};
  if (conversation.tool_choice == ToolChoice::kAuto) return conversation.tools;
  if (conversation.thinking) {
    return Error{ErrorCode::kInvalid, "tool_choice: a required tool call needs thinking to be off"};
  }
  std::vector<Tool> offered;
  for (const Tool& tool : conversation.tools) {
    if (conversation.chosen_tool.empty() || tool.name == conversation.chosen_tool) {
      offered.push_back(tool);
    }
  }
  if (offered.empty()) {
    return Error{ErrorCode::kInvalid,
                 conversation.chosen_tool.empty()
                     ? "tool_choice: a tool call is required, but there are no tools"
                     : "tool_choice: there is no tool " + shown_text(conversation.chosen_tool)};
  }
  return offered;
}

bool is_blank(const Turn& turn) {
  return std::all_of(turn.blocks.begin(), turn.blocks.end(), [](const Block& block) {
    return std::all_of(block.parts.begin(), block.parts.end(),
                       [](const ContentPart& part) { return part.data.empty(); });
  });
}

// One conversation on its way to being a prompt.
class Rendering {
 public:
  Rendering(const Conversation& conversation, std::vector<Tool> tools,
            const model::Tokenizer& tokenizer, bool takes_images, model::TokenBudget* budget)
      : conversation_(conversation),
        takes_images_(takes_images),
        tools_(std::move(tools)),
        turns_(make_turns(conversation.messages)),
        writer_(tokenizer, budget) {
    // Tools and format belong to a system turn in front; without one they get an empty one.
    const bool has_system = !turns_.empty() && turns_[0].role == Role::kSystem;
    if (!has_system && (!tools_.empty() || !conversation.response_format.empty())) {
      turns_.insert(turns_.begin(), Turn{Role::kSystem, {}, Task::kNone, nullptr});
    }
    prompt_.tools = !tools_.empty();
    keep_ = !tools_.empty() || conversation.keep_reasoning;
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (asks(i)) last_asking_ = i;
    }
  }

  Result<Prompt> render() {
    TRY(writer_.token(kBegin));
    if (turns_.empty() && conversation_.thinking) TRY(write_effort());
    for (size_t i = 0; i < turns_.size(); ++i) {
      TRY(write_turn(i));
      TRY(write_header_after(i));
    }
    TRY(write_end());
    prompt_.ids = TRY(writer_.finish());
    return std::move(prompt_);
  }

 private:
  // A user's turn, or a system's that is not the first: the assistant answers it.
  bool asks(size_t i) const {
    return turns_[i].role == Role::kUser || (turns_[i].role == Role::kSystem && i > 0);
  }
  // Whether turn i stands at or after the last one that asks.
  bool is_recent(size_t i) const { return !last_asking_ || i >= *last_asking_; }

  Result<void> write_effort() {
    TRY(writer_.token(kSystem));
    writer_.text(kEffortHead);
    writer_.text(std::to_string(conversation_.effort));
    writer_.text(kEffortTail);
    return {};
  }

  Result<void> write_blocks(const Turn& turn) {
    bool first = true;
    for (const Block& block : turn.blocks) {
      if (!std::exchange(first, false)) writer_.text(kBlockSeparator);
      if (block.is_result) writer_.text(kOpenResult);
      for (size_t i = 0; i < block.parts.size(); ++i) {
        if (i > 0) writer_.text(kBlockSeparator);
        TRY(write_part(block.parts[i], turn.role));
      }
      if (block.is_result) writer_.text(kCloseResult);
    }
    return {};
  }

  Result<void> write_part(const ContentPart& part, Role role) {
    if (part.kind == PartKind::kText) {
      writer_.text(part.data);
      return {};
    }
    if (role != Role::kUser) {
      return Error{ErrorCode::kInvalid, "images are taken in user and tool messages only"};
    }
    if (!takes_images_) {
      return Error{ErrorCode::kUnsupported, "messages: images are not supported here yet"};
    }
    prompt_.images.push_back(part.data);
    return writer_.token(kImage);
  }

  Result<void> write_turn(size_t i) {
    const Turn& turn = turns_[i];
    if (i == 0 && conversation_.thinking) {
      TRY(write_effort());
    } else if (turn.role == Role::kSystem) {
      TRY(writer_.token(kSystem));
    }
    if (turn.role == Role::kUser) TRY(writer_.token(kUser));
    if (turn.role == Role::kReminder) TRY(writer_.token(kReminder));
    if (turn.role == Role::kAssistant) return write_answer(i);
    TRY(write_blocks(turn));
    if (i > 0 || turn.role != Role::kSystem) return {};
    if (!tools_.empty()) {
      writer_.text(kBlockSeparator);
      TRY(write_tools(tools_, writer_));
    }
    if (!conversation_.response_format.empty()) {
      writer_.text(kBlockSeparator);
      writer_.text(kFormatHead);
      writer_.text(conversation_.response_format);
    }
    return {};
  }

  Result<void> write_answer(size_t i) {
    const Message& message = *turns_[i].message;
    const bool after_task = i > 0 && turns_[i - 1].task != Task::kNone;
    const bool reasons = conversation_.thinking && !after_task && (keep_ || is_recent(i));
    if (reasons) {
      writer_.text(message.reasoning);
      if (message.continues && message.calls.empty() && is_blank(turns_[i])) {
        open_ = AnswerStart::kReasoning;
        return {};
      }
      TRY(writer_.token(kEndThink));
    }
    TRY(write_blocks(turns_[i]));
    if (!message.calls.empty()) TRY(write_calls(message.calls, writer_));
    if (message.continues) {
      open_ = AnswerStart::kContent;
      return {};
    }
    open_.reset();
    return writer_.token(kEnd);
  }

  Result<void> write_header_after(size_t i) {
    const bool is_last = i + 1 == turns_.size();
    if (!is_last && turns_[i + 1].role != Role::kAssistant &&
        turns_[i + 1].role != Role::kReminder) {
      return {};
    }
    if (is_last && !conversation_.open_answer) return {};
    const Task task = turns_[i].task;
    if (task != Task::kNone) {
      if (task == Task::kAction) TRY(open_answer(conversation_.thinking));
      open_ = AnswerStart::kContent;  // what comes is the task's short output
      return writer_.token(task_token(task));
    }
    if (asks(i)) return open_answer(conversation_.thinking && (keep_ || is_recent(i)));
    return {};
  }

  Result<void> open_answer(bool thinking) {
    open_ = thinking ? AnswerStart::kReasoning : AnswerStart::kContent;
    TRY(writer_.token(kAssistant));
    return writer_.token(thinking ? kThink : kEndThink);
  }

  // Whatever came last, the prompt ends where an answer goes on; the release leaves a lone system
  // turn or a closed answer without a header, where nothing could follow.
  Result<void> write_end() {
    if (!conversation_.open_answer) return {};
    if (!open_) TRY(open_answer(conversation_.thinking));
    prompt_.start = *open_;
    if (conversation_.tool_choice != ToolChoice::kRequired) return {};
    if (!turns_.empty() && turns_.back().role == Role::kAssistant &&
        turns_.back().message->continues) {
      return Error{ErrorCode::kInvalid,
                   "tool_choice: a tool call cannot be required where an answer is continued"};
    }
    prompt_.start = AnswerStart::kCalls;
    return writer_.markup(kOpenCalls);
  }

  const Conversation& conversation_;
  bool takes_images_;
  std::vector<Tool> tools_;
  std::vector<Turn> turns_;
  PromptWriter writer_;
  Prompt prompt_;
  bool keep_ = false;  // the reasoning of earlier turns
  std::optional<size_t> last_asking_;
  std::optional<AnswerStart> open_;  // the assistant's turn, while it is
};

}  // namespace

Result<ChatCodec> ChatCodec::create(const model::Tokenizer& tokenizer, bool takes_images) {
  ChatCodec codec(tokenizer, takes_images);
  codec.begin_ = TRY(required_id(tokenizer, kBegin));
  codec.end_ = TRY(required_id(tokenizer, kEnd));
  codec.control_ = {codec.begin_, codec.end_};
  for (const std::string_view text : {kPad, kSystem, kUser, kAssistant, kReminder, kImage}) {
    if (const std::optional<int32_t> id = tokenizer.added_id(text)) codec.control_.push_back(*id);
  }
  for (const model::AddedToken& token : tokenizer.added_tokens()) {
    if (token.special) codec.control_.push_back(token.id);
  }
  std::sort(codec.control_.begin(), codec.control_.end());
  return codec;
}

bool ChatCodec::is_control(int32_t id) const {
  return std::binary_search(control_.begin(), control_.end(), id);
}

Result<std::vector<int32_t>> ChatCodec::encode_text(std::string_view text, model::Markup markup,
                                                    model::TokenBudget* budget) const {
  std::vector<int32_t> ids = {begin_};
  if (budget != nullptr) ++budget->seen;
  const std::vector<int32_t> encoded = TRY(tokenizer_->encode(text, markup, budget));
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return ids;
}

Result<std::vector<int32_t>> ChatCodec::encode_fill(std::string_view before, std::string_view after,
                                                    model::TokenBudget* budget) const {
  PromptWriter writer(*tokenizer_, budget);
  TRY(writer.token(kBegin));
  TRY(writer.token(kFillBegin));
  writer.text(before);
  TRY(writer.token(kFillHole));
  writer.text(after);
  TRY(writer.token(kFillEnd));
  return writer.finish();
}

Result<Prompt> ChatCodec::encode(const Conversation& conversation,
                                 model::TokenBudget* budget) const {
  if (conversation.thinking &&
      (conversation.effort < kEffortMin || conversation.effort > kEffortMax)) {
    return Error{ErrorCode::kInvalid,
                 "reasoning_effort: must lie in 1..100, is " + std::to_string(conversation.effort)};
  }
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    if (conversation.messages[i].calls.size() <= kCallsMax) continue;
    return Error{ErrorCode::kInvalid, "messages[" + std::to_string(i) + "]: has more than " +
                                          std::to_string(kCallsMax) + " tool calls"};
  }
  std::vector<Tool> tools = TRY(offered_tools(conversation));
  return Rendering(conversation, std::move(tools), *tokenizer_, takes_images_, budget).render();
}

}  // namespace galley::serve
