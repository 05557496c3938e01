#include "serve/turns.h"

#include <algorithm>
#include <utility>

namespace galley::serve {
namespace {

size_t rank_of(const std::string& call_id, const std::vector<ToolCall>* calls) {
  if (calls == nullptr) return 0;
  const auto found = std::find_if(calls->begin(), calls->end(),
                                  [&](const ToolCall& call) { return call.id == call_id; });
  return found == calls->end() ? 0 : static_cast<size_t>(found - calls->begin());
}

// Results change places among themselves; what stands between them stays where it is.
void order_results(std::vector<Block>& blocks) {
  std::vector<Block> results;
  for (const Block& block : blocks) {
    if (block.is_result) results.push_back(block);
  }
  std::stable_sort(results.begin(), results.end(),
                   [](const Block& a, const Block& b) { return a.rank < b.rank; });
  auto next = results.begin();
  for (Block& block : blocks) {
    if (block.is_result) block = std::move(*next++);
  }
}

}  // namespace

std::vector<Turn> make_turns(const std::vector<Message>& messages) {
  std::vector<Turn> turns;
  const std::vector<ToolCall>* calls = nullptr;  // of the last assistant that made any
  for (const Message& message : messages) {
    const bool is_tool = message.role == Role::kTool;
    const bool is_user = is_tool || message.role == Role::kUser;
    if (!message.calls.empty()) calls = &message.calls;
    const bool joins = is_user && !turns.empty() && turns.back().role == Role::kUser &&
                       turns.back().task == Task::kNone;
    if (!joins) {
      turns.push_back({is_user ? Role::kUser : message.role, {}, Task::kNone, &message});
    }
    Turn& turn = turns.back();
    if (is_user) turn.task = message.task;
    if (is_tool) {
      turn.blocks.push_back({message.content, true, rank_of(message.call_id, calls)});
    } else {
      for (const ContentPart& part : message.content) turn.blocks.push_back({{part}, false, 0});
    }
  }
  for (Turn& turn : turns) order_results(turn.blocks);
  return turns;
}

}  // namespace galley::serve
