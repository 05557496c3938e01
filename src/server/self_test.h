// Asks the engine a few tokens before anybody else does, and judges whether they
// could come from a working model.
//
// Broken kernels, layouts and checkpoints show in the same ways: no numbers at
// all, logits that hardly differ, or the same answer with the same probability at
// every step and for every prompt. None of this says that the model is good.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace galley::server {

// What one prompt got: the chosen token of each step, and how the best ones compare.
struct SelfTestAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<float> spreads;  // best minus worst of the reported log-probabilities
  bool failed = false;         // the engine said that the logits are no numbers
};

// kCorrupt with what is wrong.
Result<void> judge_self_test(std::span<const SelfTestAnswer> answers);

// Runs fixed prompts of ids below `vocab_size` through the engine, and waits.
Result<void> run_self_test(engine::Engine& engine, int32_t vocab_size);

}  // namespace galley::server
