// Judges what a model wrote for one case of an evaluation set
// (training/tasks/README.md has the rules; tasks_check.py follows the same).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace galley::tools {

enum class CheckKind : uint8_t { kExact, kContains, kJson, kToolCall };

struct TaskCase {
  std::string id;
  std::string task;
  std::string bucket;
  std::string prompt;  // rendered: control tokens in it count, nothing is added
  int32_t output_tokens_max = 0;
  CheckKind kind = CheckKind::kExact;
  std::string text;                             // of kExact and kContains
  std::shared_ptr<const nlohmann::json> value;  // of kJson and kToolCall; shared by copies
};

// One line of a set. kUnsupported for a case without a check.
Result<TaskCase> parse_task_case(std::string_view line);

struct Verdict {
  bool passed = false;
  std::optional<bool> well_formed;  // where form and content are told apart
};

// `output` is the generated text with control tokens, without the final end token.
Verdict judge(const TaskCase& task, std::string_view output);

}  // namespace galley::tools
