// Messages as the turns that the model sees (spec/chat.md 2): tool results join
// the user's turn, neighbouring user messages become one, results stand in the
// order of their calls.
#pragma once

#include <string>
#include <vector>

#include "serve/conversation.h"

namespace galley::serve {

struct Block {
  std::vector<ContentPart> parts;
  bool is_result = false;
  size_t rank = 0;  // of a result: which call it answers
};

struct Turn {
  Role role = Role::kUser;  // never kTool
  std::vector<Block> blocks;
  Task task = Task::kNone;
  const Message* message = nullptr;  // of an assistant: the rest of it; points into the messages
};

std::vector<Turn> make_turns(const std::vector<Message>& messages);

}  // namespace galley::serve
