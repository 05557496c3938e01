// Runs sequences through model/step.h for tests: owns a cache, a step and the
// token lists, gives out slots and pages in a chosen or shuffled order, and
// builds the plans.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step.h"

namespace galley::testing {

// tests/golden/NAME/checkpoint, with the class map of its tokenizer.
std::unique_ptr<model::Model> golden_model(const std::string& name);

// Every implementation this machine can run, by name.
std::vector<std::string> ops_names();
std::unique_ptr<kernels::Ops> make_ops(const std::string& name, ThreadPool& pool);

struct DriverOptions {
  std::string ops = "plain";
  int threads = 1;
  model::DecoderReplay replay = model::DecoderReplay::kOff;
  int32_t page_tokens = 32;
  int32_t verify_rows_max = 4;
  bool hold_inputs = false;
  int32_t reuse_layers = 0;
  bool capture_targets = false;
  int32_t rows_max = 1024;
  int32_t sequences_max = 8;
  int64_t positions_max = 1024;
  uint32_t page_seed = 1;  // order in which pages are given out
};

using Logits = std::vector<float>;  // of one row

struct Sequence {
  std::vector<int32_t> tokens;  // all that was or will be fed
  int32_t slot = 0;
  std::vector<int32_t> pages;
  int64_t prompt_end = 0;  // for decoder replay
  // Image spans, per token of the prompt; empty = none.
  std::vector<const kernels::Bf16*> embeddings;
  std::vector<uint8_t> in_image;
};

// Rows [begin, end) of a sequence, and what to change in the plan made for them.
struct Part {
  Sequence* sequence = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  bool all_logits = true;  // else the last row's
  bool hold = false;       // keep the cut's inputs; run the tail only in the last chunk
  model::RowKind kind = model::RowKind::kPrefill;
  int64_t window_floor = 0;
  int64_t global_begin = 0;
  bool keep_inputs = false;  // for a snapshot: the tail runs in every chunk all the same
  int32_t held_rows = 0;     // of a snapshot that was loaded
};

class Driver {
 public:
  Driver(const model::Model& model, const DriverOptions& options);

  // Pages for `positions_max` tokens, in the slot given.
  Sequence start(std::vector<int32_t> tokens, int32_t slot = 0);

  // One step; the logits of each part's wanted rows, in order.
  std::vector<std::vector<Logits>> step(const std::vector<Part>& parts);
  // One part alone.
  std::vector<Logits> run(const Part& part) { return step({part}).front(); }
  // Prefill of everything in chunks that end at `ends`; the logits of all wanted rows.
  std::vector<Logits> prefill(Sequence& sequence, const std::vector<int64_t>& ends,
                              bool all_logits = true, bool hold = false);

  model::SequencePlan plan(const Part& part) const;

  const model::Config& config() const { return model_.config(); }
  model::Step& forward() { return *step_; }
  model::KvCache& cache() { return *cache_; }
  const model::StepResult& last() const { return last_; }
  void set_observer(model::StepObserver* observer) { observer_ = observer; }

 private:
  const model::Model& model_;
  DriverOptions options_;
  ThreadPool pool_;
  std::unique_ptr<kernels::Ops> ops_;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<model::Step> step_;
  std::vector<int32_t> free_pages_;
  model::StepResult last_;
  model::StepObserver* observer_ = nullptr;
};

// Bytes of the kernels' memory.
std::vector<uint8_t> bytes_at(Driver& driver, const void* from, int64_t count);

// Every byte of a sequence's pages that hold `positions` tokens, by record.
std::vector<uint8_t> global_bytes(Driver& driver, const Sequence& sequence, int64_t positions);

}  // namespace galley::testing
