// config.json of a DeepSeek-V4.1 checkpoint, parsed and validated
// (spec/model.md 1), and what each layer does because of it.
//
// Fails closed: a key of the table that is missing, of the wrong type or of a
// value this program does not compute is refused by its dotted name. Keys
// outside the table are ignored. Knows nothing of tensors or files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::model {

// What one backbone layer owns and reads (spec/model.md 1.1).
struct LayerRole {
  int32_t ratio = 0;          // tokens per compressed entry; 0 = window only
  bool owns_kv = false;       // has a compressor and index keys (a KV source)
  bool owns_indexer = false;  // chooses entries itself (an index source)
  int32_t kv_source = -1;     // whose compressed KV and index keys it reads; -1 = window only
  int32_t index_source = -1;  // whose selection it reads; itself when owns_indexer
  bool builds_pool = false;   // the candidate source
  bool reads_pool = false;    // an index source after it: chooses inside the pool
  int32_t engram_index = -1;  // place in engram_layer_ids, -1 = no Engram here
};

struct RopeConfig {
  float theta = 10000.0F;            // window-only layers
  float compress_theta = 160000.0F;  // every layer with ratio > 0, with YaRN
  float yarn_factor = 1.0F;
  int64_t yarn_original_length = 0;  // 0 = no YaRN
  float yarn_beta_fast = 32.0F;
  float yarn_beta_slow = 1.0F;
};

struct EngramConfig {
  std::vector<int32_t> layer_ids;   // empty = no Engram
  std::vector<int64_t> table_rows;  // per Engram layer
  int32_t ngram_size_max = 0;       // 4: 2-, 3- and 4-grams
  int64_t prime_search_start = 0;   // engram_vocab_size
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t pad_token_id = 0;  // raw id; mapped before use
  int32_t compressed_vocab_size = 0;

  int32_t columns() const { return (ngram_size_max - 1) * heads; }  // table rows per position
  int32_t width() const { return columns() * head_dim; }            // their concatenation
};

struct DsparkConfig {
  int32_t stages = 0;  // num_nextn_predict_layers, 0 = no drafting
  int32_t block_size = 0;
  int32_t noise_token_id = 0;
  std::vector<int32_t> target_layer_ids;
  int32_t markov_rank = 0;
  int32_t routed_experts = 0;
  int32_t experts_per_token = 0;
};

struct VisionConfig {
  int32_t layers = 0;  // 0 = no vision
  int32_t hidden = 0;
  int32_t heads = 0;
  int32_t intermediate = 0;
  int32_t patch_size = 0;
  float rope_theta = 10000.0F;
  int32_t downsample_ratio = 0;
  int32_t image_tokens_max = 0;
  int64_t pixels_min = 0;
  double wh_ratio_max = 0.0;  // 0 = null, no limit
};

struct Config {
  int32_t vocab_size = 0;
  int32_t hidden = 0;  // d
  int32_t layers = 0;  // L
  int32_t heads = 0;   // h
  int32_t head_dim = 0;
  int32_t rope_dim = 0;
  int32_t q_lora_rank = 0;
  int32_t o_lora_rank = 0;
  int32_t o_groups = 0;
  float norm_eps = 0.0F;

  int32_t expert_width = 0;  // I
  int32_t routed_experts = 0;
  int32_t experts_per_token = 0;
  float routed_scaling = 0.0F;
  float gate_temperature = 1.0F;
  float swiglu_limit = 0.0F;

  int32_t window = 0;                    // W
  std::vector<int32_t> compress_ratios;  // as listed: layers, then draft stages
  std::vector<int32_t> kv_sources;
  std::vector<int32_t> index_sources;
  int32_t candidate_source = -1;  // -1 = no pool
  int32_t candidate_blocks = 0;
  int32_t candidate_block_size = 0;
  int32_t index_heads = 0;
  int32_t index_head_dim = 0;
  int32_t index_top_k = 0;

  RopeConfig rope;
  int64_t positions_max = 0;

  int32_t streams = 0;  // n, hc_mult
  int32_t sinkhorn_iterations = 0;
  float hc_eps = 0.0F;

  int32_t bos_token_id = 0;
  int32_t eos_token_id = 0;
  int32_t pad_token_id = 0;
  int32_t image_token_id = -1;  // -1 = none given

  EngramConfig engram;
  DsparkConfig dspark;
  VisionConfig vision;

  std::vector<LayerRole> roles;  // [layers], derived

  // Coefficients of one hyper-connection site: pre, post and the n x n mix.
  int32_t hc_coefficients() const { return (2 + streams) * streams; }
  // Where decoder replay cuts: the last KV source, or -1 without one (8.3).
  int32_t decoder_source() const { return kv_sources.empty() ? -1 : kv_sources.back(); }
};

// The text of config.json. Errors name the field; the caller adds the path.
Result<Config> parse_config(std::string_view json);

}  // namespace galley::model
