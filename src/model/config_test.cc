// Shows that the released config.json loads with its layer roles, and that
// every rule of spec/model.md 1 refuses with the field's name: one value of the
// released config is changed at a time.
#include "model/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "model/released_config.h"

namespace galley::model {
namespace {

using nlohmann::json;

json released() { return json::parse(released_config_json()); }

std::string error_of(const std::function<void(json&)>& change) {
  json config = released();
  change(config);
  const auto result = parse_config(config.dump());
  return result ? "" : result.error().message;
}

std::string error_of_text(const std::string& key, const json& value) {
  return error_of([&](json& config) { config["text_config"][key] = value; });
}

TEST(Config, ReadsTheReleasedModel) {
  const auto config = parse_config(released_config_json());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->layers, 40);
  EXPECT_EQ(config->hidden, 5120);
  EXPECT_EQ(config->norm_eps, 1e-20F);
  EXPECT_EQ(config->hc_coefficients(), 24);
  EXPECT_EQ(config->engram.width(), 6144);
  EXPECT_EQ(config->engram.table_rows, (std::vector<int64_t>{384006168, 384016682}));
  EXPECT_EQ(config->dspark.stages, 3);
  EXPECT_EQ(config->vision.layers, 32);
  EXPECT_EQ(config->vision.wh_ratio_max, 0.0);
  EXPECT_EQ(config->decoder_source(), 20);
}

TEST(Config, DerivesLayerRoles) {
  const auto config = parse_config(released_config_json());
  ASSERT_TRUE(config) << config.error().message;
  const auto role = [&](int32_t layer) { return config->roles[static_cast<size_t>(layer)]; };
  EXPECT_EQ(role(0).kv_source, -1);
  EXPECT_EQ(role(0).index_source, -1);
  EXPECT_EQ(role(1).engram_index, 0);
  EXPECT_EQ(role(14).engram_index, 1);
  EXPECT_EQ(role(2).engram_index, -1);
  EXPECT_TRUE(role(2).owns_kv && role(2).owns_indexer);
  EXPECT_EQ(role(7).kv_source, 2);
  EXPECT_EQ(role(13).index_source, 8);
  EXPECT_EQ(role(19).ratio, 2);
  EXPECT_TRUE(role(20).builds_pool);
  EXPECT_FALSE(role(20).reads_pool);
  EXPECT_TRUE(role(24).reads_pool && role(24).owns_indexer && !role(24).owns_kv);
  EXPECT_EQ(role(27).kv_source, 20);
  EXPECT_EQ(role(27).index_source, 24);
  EXPECT_EQ(role(39).index_source, 36);
}

TEST(Config, RefusesValuesByName) {
  const std::vector<std::pair<std::string, json>> wrong = {{"model_type", "deepseek_v4"},
                                                           {"vocab_size", 0},
                                                           {"hidden_size", 5121},
                                                           {"num_hidden_layers", 41000},
                                                           {"num_hidden_layers", "40"},
                                                           {"num_attention_heads", 12},
                                                           {"num_key_value_heads", 2},
                                                           {"head_dim", 500},
                                                           {"qk_rope_head_dim", 63},
                                                           {"q_lora_rank", -1},
                                                           {"o_groups", 7},
                                                           {"rms_norm_eps", 0},
                                                           {"moe_intermediate_size", 2305},
                                                           {"n_routed_experts", 5},
                                                           {"n_shared_experts", 2},
                                                           {"num_experts_per_tok", 385},
                                                           {"scoring_func", "softmax"},
                                                           {"topk_method", "greedy"},
                                                           {"norm_topk_prob", false},
                                                           {"routed_scaling_factor", -1.5},
                                                           {"gate_temp", 0},
                                                           {"swiglu_limit", 0},
                                                           {"num_hash_layers", 3},
                                                           {"sliding_window", 0},
                                                           {"compress_ratios", json{0, 0}},
                                                           {"candidate_topk_blocks", 64},
                                                           {"index_head_dim", 32},
                                                           {"index_topk", 0},
                                                           {"rope_theta", -1},
                                                           {"compress_rope_theta", nullptr},
                                                           {"rope_scaling", nullptr},
                                                           {"max_position_embeddings", 0},
                                                           {"hc_mult", 0},
                                                           {"hc_sinkhorn_iters", 0},
                                                           {"hc_eps", 0},
                                                           {"engram_max_ngram_size", 5},
                                                           {"engram_n_heads", 0},
                                                           {"engram_head_dim", 250},
                                                           {"engram_pad_token_id", 129280},
                                                           {"engram_compressed_vocab_size", 129281},
                                                           {"hidden_act", "gelu"},
                                                           {"attention_bias", true},
                                                           {"attention_dropout", 0.1},
                                                           {"tie_word_embeddings", true},
                                                           {"dspark_block_size", 0},
                                                           {"dspark_noise_token_id", -1},
                                                           {"dspark_markov_rank", 0},
                                                           {"dspark_num_experts_per_tok", 129},
                                                           {"dspark_n_routed_experts", 2},
                                                           {"num_nextn_predict_layers", 17}};
  for (const auto& [key, value] : wrong) {
    const std::string message = error_of_text(key, value);
    // Some pairs contradict each other: either name of the pair is a fair answer.
    const bool names_it =
        message.find(key) != std::string::npos ||
        (key == "num_attention_heads" && message.find("o_groups") == 12) ||
        (key == "n_routed_experts" && message.find("num_experts_per_tok") != std::string::npos) ||
        (key == "dspark_n_routed_experts" &&
         message.find("dspark_num_experts_per_tok") != std::string::npos);
    EXPECT_TRUE(names_it) << key << " = " << value << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(Config, RefusesMissingFieldsByName) {
  const json config = released();
  for (const auto& [key, value] : config["text_config"].items()) {
    const std::string message = error_of([&](json& c) { c["text_config"].erase(key); });
    EXPECT_EQ(message, "text_config." + key + ": missing");
  }
  for (const char* key : {"text_config", "quantization_config", "model_type", "architectures",
                          "bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"}) {
    EXPECT_EQ(error_of([&](json& c) { c.erase(key); }), std::string(key) + ": missing");
  }
  for (const auto& [key, value] : config["vision_config"].items()) {
    EXPECT_EQ(error_of([&](json& c) { c["vision_config"].erase(key); }),
              "vision_config." + key + ": missing");
  }
}

TEST(Config, ChecksSources) {
  EXPECT_EQ(error_of_text("index_source_layer_ids", {2, 14, 20, 24}),
            "text_config.index_source_layer_ids: KV source 8 must be an index source too");
  EXPECT_EQ(error_of_text("kv_source_layer_ids", {1, 2, 8, 14, 20}),
            "text_config.kv_source_layer_ids: layer 1 has ratio 0");
  EXPECT_EQ(error_of_text("kv_source_layer_ids", {8, 2}),
            "text_config.kv_source_layer_ids: layer ids must ascend");
  EXPECT_EQ(error_of_text("kv_source_layer_ids", {8, 14, 20}),
            "text_config.compress_ratios: layer 2 has ratio 2 but no KV source of that ratio "
            "before it");
  EXPECT_EQ(error_of([](json& c) { c["text_config"]["compress_ratios"][30] = 2; }),
            "text_config.compress_ratios: layer 30 has ratio 2 but no KV source of that ratio "
            "before it");
  EXPECT_EQ(error_of_text("candidate_source_layer_id", 24),
            "text_config.candidate_source_layer_id: layer 24 is not a KV source");
  EXPECT_EQ(error_of_text("candidate_source_layer_id", 2),
            "text_config.candidate_source_layer_id: index source 20 after it has ratio 1, not 2");
  EXPECT_EQ(error_of_text("engram_num_embeddings", {384006168, 384016681}),
            "text_config.engram_num_embeddings: entry 1 is 384016681, its hash primes need "
            "384016682 rows");
  EXPECT_EQ(error_of([](json& c) { c["text_config"]["compress_ratios"][41] = 1; }),
            "text_config.compress_ratios[41]: draft stages attend to their window only, the "
            "ratio must be 0");
}

TEST(Config, TheSmallestAllowedPoolFits) {
  // (64 + 1 - 1) * 8 + 1 = 513 entries for a top-k of 512.
  EXPECT_EQ(error_of_text("candidate_topk_blocks", 65), "");
}

TEST(Config, ChecksTheQuantisation) {
  const auto changed = [](const char* key, const json& value) {
    return error_of([&](json& c) { c["quantization_config"][key] = value; });
  };
  EXPECT_EQ(changed("weight_block_size", {128, 128}),
            "quantization_config.weight_block_size: only [32, 32] is supported");
  EXPECT_EQ(changed("scale_fmt", "f32"),
            "quantization_config.scale_fmt: is \"f32\", only \"ue8m0\" is supported");
  EXPECT_EQ(changed("expert_dtype", 4),
            "quantization_config.expert_dtype: must be a string, is an integer");
}

TEST(Config, SmallerModelsAreModelsToo) {
  EXPECT_EQ(error_of([](json& c) {
              c.erase("vision_config");
              c.erase("image_token_id");
              c["text_config"]["num_nextn_predict_layers"] = 0;
              c["text_config"].erase("dspark_block_size");
              c["text_config"]["engram_layer_ids"] = json::array();
              c["text_config"].erase("engram_n_heads");
              c["text_config"]["candidate_source_layer_id"] = -1;
              c["text_config"].erase("candidate_topk_blocks");
            }),
            "");
  EXPECT_EQ(error_of([](json& c) { c["vision_config"] = {{"num_hidden_layers", 0}}; }), "");
}

TEST(Config, IgnoresKeysOutsideTheTable) {
  EXPECT_EQ(error_of_text("initializer_range", 0.02), "");
  EXPECT_EQ(error_of([](json& c) { c["transformers_version"] = {1, {2, "x"}}; }), "");
}

TEST(Config, RefusesAKeyNamedTwice) {
  std::string text = released_config_json();
  text.insert(text.find("\"hidden_size\""), "\"hidden_size\": 5120, ");
  const auto config = parse_config(text);
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().message, "the key \"hidden_size\" appears twice in one object");
}

}  // namespace
}  // namespace galley::model
