// What a step costs beside its kernels: no allocation, and microseconds.
//
// Kernels with empty bodies leave the step's own work: plan check, row sets,
// hashes, per-row arguments, rings. Allocations are counted by replacing the
// global operator new of this program, for empty kernels and for the fast ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>

#include "driver.h"
#include "kernels/host_ops.h"
#include "random_model.h"

namespace {
std::atomic<int64_t> allocation_count{0};

// Not inlined: where the compiler inlines one side of a new and its delete only (as it
// does for the sanitizers), it would warn of memory from new that goes to free.
[[gnu::noinline]] void give_back(void* memory) { std::free(memory); }
}  // namespace

void* operator new(size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
void* operator new[](size_t size) { return operator new(size); }
// The library's own would not come here under the sanitizers.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return operator new(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return operator new(size); }
void* operator new(size_t size, std::align_val_t alignment) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(sizeof(void*), static_cast<size_t>(alignment)), size) == 0) {
    return memory;
  }
  std::abort();
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { give_back(memory); }

namespace galley::testing {
namespace {

using kernels::Bf16;
using kernels::Rows;

class EmptyOps : public kernels::HostOps {
 public:
  std::string_view name() const override { return "empty"; }
  void spread(std::span<const kernels::SourceRow>, int64_t, int32_t, Rows<Bf16>) override {}
  void linear(Rows<const Bf16>, std::span<const kernels::Product>) override {}
  void grouped_linear(Rows<const Bf16>, const kernels::WeightView&, int32_t, Rows<Bf16>) override {}
  void rms_norm(Rows<const Bf16>, const Bf16*, float, Rows<Bf16>) override {}
  void hc_enter(Rows<const Bf16>, const kernels::HcWeights&, const kernels::HcOptions&,
                Rows<const float>, const Bf16*, kernels::HcMix, Rows<Bf16>) override {}
  void collapse_norm(Rows<const Bf16>, Rows<const float>, int32_t, const Bf16*, float,
                     Rows<Bf16>) override {}
  void hc_leave(Rows<const Bf16>, Rows<const float>, Rows<const float>, int32_t,
                Rows<Bf16>) override {}
  void stream_mean(Rows<const Bf16>, int32_t, Rows<Bf16>) override {}
  void rope(Rows<Bf16>, int32_t, const kernels::RopeAngles&, bool) override {}
  void window_keys(Rows<const Bf16>, const Bf16*, float, const kernels::RopeAngles&,
                   Rows<uint8_t>) override {}
  void compress(Rows<const float>, Rows<const float>, int32_t, const Bf16*, float,
                Rows<Bf16>) override {}
  void global_keys(Rows<const Bf16>, const kernels::RopeAngles&,
                   std::span<uint8_t* const>) override {}
  void index_keys(Rows<const Bf16>, const Bf16*, float, const kernels::RopeAngles&,
                  std::span<uint8_t* const>) override {}
  void index_queries(Rows<Bf16>, int32_t, const kernels::RopeAngles&) override {}
  void index_select(Rows<const Bf16>, Rows<const Bf16>, const kernels::IndexShape&,
                    std::span<const kernels::IndexRow> rows) override {
    for (const kernels::IndexRow& row : rows) {
      *row.selected_count = 0;
      if (row.built_pool_count != nullptr) *row.built_pool_count = 0;
    }
  }
  void attention(Rows<const Bf16>, const float*, const kernels::AttentionShape&,
                 const kernels::RopeAngles&, std::span<const kernels::AttentionRow>,
                 Rows<Bf16>) override {}
  void route(Rows<const Bf16>, const kernels::WeightView&, std::span<const float* const>,
             const kernels::RouterOptions&, Rows<int32_t>, Rows<float>, float*) override {}
  void moe(Rows<const Bf16>, const kernels::MoeWeights&, Rows<const int32_t>, Rows<const float>,
           Rows<Bf16>) override {}
  void engram_lookup(const kernels::EngramTable&, Rows<const int64_t>, Rows<Bf16>) override {}
  void engram_write(Rows<const Bf16>, const Bf16*, const Bf16*, std::span<const uint8_t>, int32_t,
                    float, Rows<Bf16>, Rows<float>) override {}
};

// The layer roles and widths of models/nano.
void nano_shape(nlohmann::json& text) {
  text["hidden_size"] = 256;
  text["num_hidden_layers"] = 12;
  text["moe_intermediate_size"] = 96;
  text["num_attention_heads"] = 8;
  text["q_lora_rank"] = 128;
  text["o_lora_rank"] = 64;
  text["o_groups"] = 4;
  text["sliding_window"] = 64;
  text["compress_ratios"] = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1};
  text["kv_source_layer_ids"] = {2, 4, 6};
  text["index_source_layer_ids"] = {2, 4, 6, 8, 10};
  text["index_topk"] = 64;
  text["candidate_topk_blocks"] = 32;
}

class StepCost : public ::testing::Test {
 protected:
  static constexpr int32_t kSequences = 64;
  static constexpr int64_t kContext = 512;

  StepCost() : model_(random_model(nano_shape, 41)) {
    for (int64_t i = 0; i < kContext; ++i) {
      tokens_.push_back(static_cast<int32_t>(i * 7919 % 512));
    }
    for (int32_t page = 0; page < kSequences * kContext / 32; ++page) pages_.push_back(page);
  }

  void open(kernels::Ops& ops) {
    cache_ = model::KvCache::create(model_->config(), {.page_tokens = 32},
                                    static_cast<int32_t>(pages_.size()), kSequences,
                                    kernels::host_memory())
                 .value();
    step_ = model::Step::create(
                *model_, *cache_, ops,
                {.rows_max = 256, .sequences_max = kSequences, .logit_rows_max = kSequences})
                .value();
  }

  model::SequencePlan plan(int32_t slot, int64_t first, int64_t count) const {
    const std::span<const int32_t> tokens = tokens_;
    const auto back = std::min<int64_t>(first, 3);
    model::SequencePlan plan;
    plan.slot = slot;
    plan.first_position = first;
    plan.tokens = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    plan.look_back = tokens.subspan(static_cast<size_t>(first - back), static_cast<size_t>(back));
    plan.page_table =
        std::span(pages_).subspan(static_cast<size_t>(slot * kContext / 32), kContext / 32);
    plan.logits_begin = count - 1;
    return plan;
  }

  // A chunk of a prompt, single rows, and both together.
  void run_all() {
    const model::SequencePlan chunk = plan(0, 0, 200);
    ASSERT_TRUE(step_->run(std::span(&chunk, 1)));
    for (int64_t t = 200; t < 204; ++t) {
      const model::SequencePlan row = plan(0, t, 1);
      ASSERT_TRUE(step_->run(std::span(&row, 1)));
    }
    const model::SequencePlan both[] = {plan(0, 204, 1), plan(1, 0, 100), plan(2, 0, 7)};
    ASSERT_TRUE(step_->run(both));
  }

  std::unique_ptr<model::Model> model_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> pages_;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<model::Step> step_;
};

TEST_F(StepCost, NoAllocation) {
  EmptyOps empty;
  open(empty);
  int64_t before = allocation_count;
  ASSERT_GT(before, 0) << "the counter counts";
  run_all();
  EXPECT_EQ(allocation_count - before, 0) << "the step itself";
  for (const std::string& name : ops_names()) {
    if (name == "plain") continue;  // written to be read, not to be fast
    if (name == "cuda") continue;   // making a graph allocates, once a kind of step
    ThreadPool pool(2);
    const auto ops = make_ops(name, pool);
    open(*ops);
    run_all();
    before = allocation_count;
    run_all();
    EXPECT_EQ(allocation_count - before, 0) << name;
  }
}

TEST_F(StepCost, MicrosecondsBesideTheKernels) {
  EmptyOps empty;
  open(empty);
  const auto shortest_us = [&](const std::vector<model::SequencePlan>& plans) {
    double shortest = 1e9;
    for (int i = 0; i < 500; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_TRUE(step_->run(plans));
      const std::chrono::duration<double, std::micro> taken =
          std::chrono::steady_clock::now() - begin;
      shortest = std::min(shortest, taken.count());
    }
    return shortest;
  };
  std::vector<model::SequencePlan> many;
  for (int32_t slot = 0; slot < kSequences; ++slot) many.push_back(plan(slot, 300, 1));
  const double one = shortest_us({plan(0, 300, 1)});
  const double all = shortest_us(many);
  const double chunk = shortest_us({plan(0, 0, 256)});
  std::printf("beside the kernels: 1 row %.1f us, %d rows %.1f us, a chunk of 256 %.1f us\n", one,
              kSequences, all, chunk);
  // A decode step of nano takes about a millisecond; sanitizers slow this by 20.
  EXPECT_LT(one, 50.0);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(all, 150.0);  // the bar of all host work of such a step
#endif
}

}  // namespace
}  // namespace galley::testing
