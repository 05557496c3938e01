// A model of any shape with random weights in memory, for benchmarks: valid
// fp8 and fp4 codes, scales that keep activations near one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/model.h"

namespace galley::tools {

// The released dimensions with two layers, a ratio-2 Full and a Reuse that reads it, `experts`
// routed experts each, a small vocabulary, no Engram, no drafts, no vision.
Result<model::Config> released_layers_config(int32_t experts);

// Bytes of one routed expert as stored, scales included.
int64_t expert_bytes(const model::Config& config);

class SyntheticModel {
 public:
  // kExhausted without the memory. The same config gives the same weights.
  static Result<std::unique_ptr<SyntheticModel>> create(const model::Config& config,
                                                        ThreadPool& pool);
  ~SyntheticModel();
  SyntheticModel(const SyntheticModel&) = delete;
  SyntheticModel& operator=(const SyntheticModel&) = delete;

  const model::Model& model() const { return *model_; }

 private:
  SyntheticModel() = default;

  std::byte* memory_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<model::Model> model_;
};

// Random valid records in every page and ring, as if that many tokens had been computed.
void fill_cache(const model::Config& config, model::KvCache& cache, ThreadPool& pool);

}  // namespace galley::tools
