// The bundled model on a GPU against the CPU: fed the CPU's greedy tokens, the GPU has
// the CPU's argmax wherever the CPU's two best logits are further apart than kGap.
//
// The two differ in the order of their sums alone, which quantisers then magnify
// (golden/README.md, "Noise"); kGap is what the goldens allow a production backend
// (no_flip_above_gap of tolerances.json). Both run the same prompts, whole and then
// token by token. Skipped without a usable device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/fast/fast_ops.h"
#include "kernels/plain/plain_ops.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "verify/runner.h"

namespace galley::verify {
namespace {

constexpr double kGap = 1.6;
constexpr int kDecoded = 48;

struct Best {
  int32_t token = 0;
  double gap = 0;  // to the second
};

Best best_of(kernels::Rows<const float> logits) {
  const float* row = logits.row(logits.rows - 1);
  Best best;
  float second = row[1];
  for (int32_t token = 1; token < logits.cols; ++token) {
    if (row[token] > row[best.token]) {
      second = row[best.token];
      best.token = token;
    } else {
      second = std::max(second, row[token]);
    }
  }
  best.gap = static_cast<double>(row[best.token]) - static_cast<double>(second);
  return best;
}

TEST(CudaNano, HasTheArgmaxOfTheCpu) {
  auto device = kernels::cuda::make_cuda_ops(0);
  if (!device) GTEST_SKIP() << device.error().message;
  ThreadPool pool(usable_cpu_count());
  const bool fast = kernels::machine_has(kernels::Isa::kAvx2);
  const auto host =
      fast ? kernels::make_fast_ops(pool, kernels::best_isa()) : kernels::make_plain_ops(pool);
  const std::string directory = GALLEY_SOURCE_DIR "/models/nano";
  const auto model = model::Model::open(directory).value();
  const auto tokenizer = model::Tokenizer::open(directory).value();
  const auto on_host = Runner::create(*model, *host, 1024).value();
  const auto on_device = Runner::create(*model, **device, 1024).value();

  std::string story = "Once upon a time there was a little dog who liked the rain. ";
  int rows = 0;
  int flips = 0;
  double widest_flip = 0;
  for (int prompt_number = 0; prompt_number < 4; ++prompt_number) {
    Prompt prompt;
    prompt.tokens = tokenizer.encode(story, model::Markup::kPlain).value();
    prompt.tokens.insert(prompt.tokens.begin(), model->config().bos_token_id);
    Best host_best = best_of(on_host->prefill(prompt, prompt.length() - 1).value());
    Best device_best = best_of(on_device->prefill(prompt, prompt.length() - 1).value());
    for (int i = 0;; ++i) {
      ++rows;
      if (device_best.token != host_best.token) {
        ++flips;
        widest_flip = std::max(widest_flip, host_best.gap);
      }
      EXPECT_TRUE(device_best.token == host_best.token || host_best.gap <= kGap)
          << "prompt " << prompt_number << " token " << i << ": gap " << host_best.gap;
      if (i == kDecoded) break;
      const int32_t token = host_best.token;
      host_best = best_of(on_host->decode(token).value());
      device_best = best_of(on_device->decode(token).value());
    }
    story += story;  // up to eight times as long: past the window and the top entries
  }
  std::printf("%d rows, %d other choices, the widest at a gap of %.4f\n", rows, flips, widest_flip);
}

}  // namespace
}  // namespace galley::verify
