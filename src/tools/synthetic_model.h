// A model of any shape with random weights in memory, for benchmarks: valid
// fp8 and fp4 codes, scales that keep activations near one.
#pragma once

#include <cstdint>
#include <functional>
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

// All 40 layers of the released dimensions, without drafts and vision, and with Engram tables of a
// hundredth of the rows (1 GB each, still the host's).
Result<model::Config> released_whole_config();

// Bytes of one routed expert as stored, scales included.
int64_t expert_bytes(const model::Config& config);

class SyntheticModel {
 public:
  // The name of the tensor whose memory a tensor has: its own, or that of another one of its shape.
  using Alias = std::function<std::string(const std::string& name)>;

  // kExhausted without the memory. The same config gives the same weights.
  static Result<std::unique_ptr<SyntheticModel>> create(
      const model::Config& config, ThreadPool& pool,
      const Alias& alias = [](const std::string& name) { return name; });
  ~SyntheticModel();
  SyntheticModel(const SyntheticModel&) = delete;
  SyntheticModel& operator=(const SyntheticModel&) = delete;

  const model::Model& model() const { return *model_; }
  size_t bytes() const { return size_; }

 private:
  SyntheticModel() = default;

  std::byte* memory_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<model::Model> model_;
};

// One layer of each role stands for all of its kind, two sets of routed experts take turns, head
// and embedding are one: a whole model of the released shape in 18 GB, whose every layer still
// reads more than any cache holds.
SyntheticModel::Alias alias_by_role(const model::Config& config);

// Random valid records in every page and ring, as if that many tokens had been computed.
void fill_cache(const model::Config& config, model::KvCache& cache, ThreadPool& pool);

}  // namespace galley::tools
