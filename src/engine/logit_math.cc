#include "engine/logit_math.h"

#include <algorithm>

namespace galley::engine {

#define DECLARE_LEVEL(level)                                                           \
  namespace level {                                                                    \
  LogitPeak find_peak(const float* logits, int64_t count, float* block_max);           \
  double sum_exponentials(const float* logits, int64_t count, float peak, float scale, \
                          float* block_sum);                                           \
  void block_exponentials(const float* logits, int64_t count, float peak, float scale, \
                          float* weights);                                             \
  }
DECLARE_LEVEL(logit_base)
DECLARE_LEVEL(logit_avx2)
DECLARE_LEVEL(logit_avx512)

namespace {

struct Level {
  decltype(&logit_base::find_peak) find_peak;
  decltype(&logit_base::sum_exponentials) sum_exponentials;
  decltype(&logit_base::block_exponentials) block_exponentials;
};

#define LEVEL(level) \
  { level::find_peak, level::sum_exponentials, level::block_exponentials }

Level machine_level() {
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return LEVEL(logit_avx512);
  }
  if (__builtin_cpu_supports("avx2")) return LEVEL(logit_avx2);
  return LEVEL(logit_base);
}

const Level kLevel = machine_level();

}  // namespace

LogitPeak find_peak(std::span<const float> logits, std::span<float> block_max) {
  return kLevel.find_peak(logits.data(), static_cast<int64_t>(logits.size()), block_max.data());
}

double sum_exponentials(std::span<const float> logits, float peak, float scale,
                        std::span<float> block_sum) {
  return kLevel.sum_exponentials(logits.data(), static_cast<int64_t>(logits.size()), peak, scale,
                                 block_sum.data());
}

void block_exponentials(std::span<const float> logits, int64_t block, float peak, float scale,
                        std::span<float, kLogitBlock> weights) {
  const int64_t begin = block * kLogitBlock;
  kLevel.block_exponentials(logits.data() + begin,
                            std::min(kLogitBlock, static_cast<int64_t>(logits.size()) - begin),
                            peak, scale, weights.data());
}

}  // namespace galley::engine
