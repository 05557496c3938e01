// Models of random weights whose layers share memory by role, and a rank's share of the experts:
// what the benchmarks of a device run on, here on the host at a small size. And the arithmetic
// around them: costs of the exchange, throughput at a speed.
#include "tools/synthetic_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "kernels/plain/plain_ops.h"
#include "model/inventory.h"
#include "model/released_config.h"
#include "model/step.h"
#include "tools/exchange_cost.h"
#include "tools/rank_ops.h"
#include "tools/throughput_at.h"

namespace galley::tools {
namespace {

// The released roles in ten small layers.
model::Config small_config() {
  nlohmann::json json = nlohmann::json::parse(model::released_config_json());
  json["text_config"].update({{"vocab_size", 512},
                              {"hidden_size", 64},
                              {"num_hidden_layers", 10},
                              {"moe_intermediate_size", 32},
                              {"num_attention_heads", 2},
                              {"head_dim", 64},
                              {"qk_rope_head_dim", 32},
                              {"q_lora_rank", 32},
                              {"o_lora_rank", 32},
                              {"o_groups", 2},
                              {"n_routed_experts", 8},
                              {"num_experts_per_tok", 2},
                              {"compress_ratios", {0, 0, 2, 2, 2, 2, 1, 1, 1, 1}},
                              {"kv_source_layer_ids", {2, 4, 6}},
                              {"index_source_layer_ids", {2, 4, 6, 8}},
                              {"candidate_source_layer_id", 6},
                              {"index_n_heads", 2},
                              {"index_head_dim", 32},
                              {"engram_layer_ids", {1, 4}},
                              {"engram_vocab_size", 1000},
                              {"engram_n_heads", 1},
                              {"engram_head_dim", 32},
                              {"engram_num_embeddings", {3200, 3200}},
                              {"engram_compressed_vocab_size", 400},
                              {"num_nextn_predict_layers", 0}});
  json["image_token_id"] = 511;
  json["vision_config"]["num_hidden_layers"] = 0;
  const auto config = model::parse_config(json.dump());
  EXPECT_TRUE(config) << config.error().message;
  return *config;
}

struct Small {
  ThreadPool pool{2};
  model::Config config = small_config();
  std::unique_ptr<SyntheticModel> synthetic =
      SyntheticModel::create(config, pool, alias_by_role(config)).value();
};

TEST(SyntheticModel, LayersOfARoleShareTheirMemory) {
  const Small small;
  const auto& layers = small.synthetic->model().weights().layers;
  const auto same = [&](size_t a, size_t b) { return layers[a].wq_a.data == layers[b].wq_a.data; };
  EXPECT_TRUE(same(3, 5));  // Reuse of the encoder
  EXPECT_TRUE(same(7, 9));  // Reuse of the decoder
  for (const auto& [a, b] : {std::pair{0, 1}, {2, 3}, {2, 4}, {6, 8}, {6, 7}, {3, 7}}) {
    EXPECT_FALSE(same(static_cast<size_t>(a), static_cast<size_t>(b))) << a << " and " << b;
  }
  for (size_t i = 2; i < layers.size(); ++i) {
    EXPECT_EQ(layers[i].experts[3].w2.data, layers[i - 2].experts[3].w2.data);
    EXPECT_NE(layers[i].experts[3].w2.data, layers[i - 1].experts[3].w2.data);
  }
  EXPECT_EQ(layers[1].engram.table, layers[4].engram.table);
  EXPECT_EQ(small.synthetic->model().weights().head.data,
            small.synthetic->model().weights().embed.data);
  const auto whole = SyntheticModel::create(small.config, *std::make_unique<ThreadPool>(1));
  EXPECT_LT(small.synthetic->bytes(), (*whole)->bytes() * 2 / 3);  // small ones fill whole pages
}

TEST(SyntheticModel, TheReleasedShapeIsEighteenGigabytes) {
  const auto config = released_whole_config();
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->layers, 40);
  const SyntheticModel::Alias alias = alias_by_role(*config);
  double bytes = 0;
  for (const model::ExpectedTensor& tensor : model::expected_tensors(*config)) {
    if (alias(tensor.name) != tensor.name) continue;
    bytes += static_cast<double>(tensor.shape.elements() *
                                 model::dtype_bytes(model::released_dtype(tensor.storage)));
  }
  EXPECT_NEAR(bytes, 18.5e9, 0.7e9);
}

TEST(RankOps, ComputesWithItsOwnExpertsAlone) {
  Small small;
  const std::unique_ptr<kernels::Ops> plain = kernels::make_plain_ops(small.pool);
  const auto rank = RankOps::create(*plain, 3, 2, 64);
  ASSERT_TRUE(rank);
  auto cache = model::KvCache::create(small.config, {.page_tokens = 32}, 2, 1, plain->memory());
  const auto step = model::Step::create(small.synthetic->model(), **cache, **rank,
                                        {.rows_max = 40, .sequences_max = 1, .expert_count = 3});
  ASSERT_TRUE(step) << step.error().message;
  std::vector<int32_t> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 3);
  const std::vector<int32_t> pages = {0, 1};
  model::SequencePlan plan;
  plan.tokens = tokens;
  plan.page_table = pages;
  plan.logits_begin = 39;
  const auto result = (*step)->run({&plan, 1});
  ASSERT_TRUE(result) << result.error().message;
  for (int64_t i = 0; i < result->logits.cols; ++i) {
    ASSERT_TRUE(std::isfinite(result->logits.row(0)[i]));
  }
}

TEST(ExchangeCost, IsBytesOverRates) {
  const auto config = model::parse_config(model::released_config_json());
  ASSERT_TRUE(config);
  // 64 rows x 6 choices x 40 layers x (5,280 + 10,240) bytes, of which a 64th stays.
  const ExchangeCost cost = exchange_cost(*config, 64, {});
  EXPECT_NEAR(cost.bytes, 64.0 * 6 * 40 * 15'520 * 63 / 64, 1);
  EXPECT_NEAR(cost.seconds, 64.0 * 6 * 40 * 15'520 * (7 / 64.0 / 394e9 + 56 / 64.0 / 50e9), 1e-9);
}

TEST(ThroughputAt, LiesBetweenWhatWasMeasured) {
  const std::vector<BatchTime> batches = {{64, 0.005, 1}, {128, 0.010, 1}};
  EXPECT_FALSE(throughput_at(batches, 240));  // 4.17 ms
  EXPECT_NEAR(*throughput_at(batches, 125), 102.4 * 125, 1e-6);
  EXPECT_NEAR(*throughput_at(batches, 100), 12'800, 1e-6);
  EXPECT_NEAR(*throughput_at(batches, 50), 12'800, 1e-6);
  EXPECT_FALSE(throughput_at({}, 50));
}

}  // namespace
}  // namespace galley::tools
