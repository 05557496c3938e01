// Configs with layer roles that the released model does not have, as changes to
// the text_config of golden g1-micro-text.
#pragma once

#include <nlohmann/json.hpp>

namespace galley::testing {

struct Roles {
  const char* name;
  void (*change)(nlohmann::json& text);
};

inline const Roles kRoles[] = {
    {"EngramAfterTheCut",
     [](nlohmann::json& text) {
       text["engram_layer_ids"] = {0, 6, 8};
     }},
    {"NoPool", [](nlohmann::json& text) { text["candidate_source_layer_id"] = -1; }},
    {"PoolBeforeTheCut",
     [](nlohmann::json& text) {
       text["compress_ratios"] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1};
       text["kv_source_layer_ids"] = {1, 6};
       text["index_source_layer_ids"] = {1, 3, 6, 8};
       text["candidate_source_layer_id"] = 1;
       text["index_topk"] = 16;
       text["candidate_topk_blocks"] = 4;
     }},
    {"RatiosFourAndTwo",
     [](nlohmann::json& text) {
       text["compress_ratios"] = {4, 4, 0, 2, 2, 2, 4, 4, 0, 0};
       text["kv_source_layer_ids"] = {0, 3, 6};
       text["index_source_layer_ids"] = {0, 3, 5, 6};
       text["candidate_source_layer_id"] = -1;
       text["index_topk"] = 8;
     }},
    {"CutAtTheFirstLayer",
     [](nlohmann::json& text) {
       text["compress_ratios"] = {1, 1, 1, 1, 0, 0, 1, 1, 1, 0};
       text["kv_source_layer_ids"] = {0};
       text["index_source_layer_ids"] = {0, 6};
       text["candidate_source_layer_id"] = 0;
     }},
    {"WindowOnly",
     [](nlohmann::json& text) {
       text["compress_ratios"] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
       text["kv_source_layer_ids"] = nlohmann::json::array();
       text["index_source_layer_ids"] = nlohmann::json::array();
       text["candidate_source_layer_id"] = -1;
       text["engram_layer_ids"] = nlohmann::json::array();
     }},
    {"OtherWidths",
     [](nlohmann::json& text) {
       text["hidden_size"] = 160;
       text["head_dim"] = 96;
       text["num_attention_heads"] = 6;
       text["o_groups"] = 3;
       text["q_lora_rank"] = 96;
       text["moe_intermediate_size"] = 32;
       text["num_experts_per_tok"] = 5;
       text["index_n_heads"] = 3;
       text["sliding_window"] = 7;
       text["hc_mult"] = 4;
     }},
};

}  // namespace galley::testing
