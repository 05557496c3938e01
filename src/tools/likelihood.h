// How likely a model finds a text: every token once, whatever the window.
//
// The text is cut into windows that each begin with the begin token and share
// nothing; decoder replay is off, so every row runs every layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/generator.h"
#include "kernels/ops.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step.h"

namespace galley::tools {

class Likelihood {
 public:
  // `window_tokens` counts the begin token. `model` and `ops` outlive it.
  static Result<std::unique_ptr<Likelihood>> create(const model::Model& model, kernels::Ops& ops,
                                                    int64_t window_tokens, int32_t begin_token);

  // The sum of -ln p over all tokens. `advance` hears of the tokens done so far and says
  // whether to go on; kCancelled when it does not.
  Result<double> nats(std::span<const int32_t> tokens,
                      const std::function<bool(int64_t tokens_done)>& advance);

 private:
  Likelihood(const model::Model& model, int64_t window_tokens, int32_t begin_token);

  Result<double> window_nats(std::span<const int32_t> tokens, int64_t done_before,
                             const std::function<bool(int64_t)>& advance);
  double row_nats(std::span<const float> logits, int32_t token);

  int64_t window_tokens_;
  int32_t begin_token_;
  int32_t look_back_;
  int32_t vocab_size_;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<model::Step> step_;
  std::vector<int32_t> page_table_;
  std::vector<int32_t> input_;  // begin token and the window's tokens
  std::vector<float> blocks_;
};

}  // namespace galley::tools
