#include "model/config.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "base/json.h"
#include "model/engram_primes.h"

namespace galley::model {
namespace {

// Generous bounds on sizes from outside: about 30 times the released model.
// They keep every product below in 64 bits and every list below a few MB.
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kWidthMax = 1 << 18;
constexpr int64_t kVocabMax = 1 << 22;
constexpr int64_t kExpertsMax = 8192;
constexpr int64_t kExpertTotalMax = 1 << 17;  // over all layers
constexpr int64_t kPositionsMax = int64_t{1} << 24;
constexpr int64_t kTableRowsMax = int64_t{1} << 36;
constexpr int64_t kEngramPrimesMax = 4096;  // over all layers

Result<int64_t> integer(const JsonValue& from, std::string_view key, int64_t smallest,
                        int64_t largest) {
  const JsonValue value = TRY(from.at(key));
  return value.as_integer(smallest, largest);
}

Result<int32_t> count(const JsonValue& from, std::string_view key, int64_t smallest,
                      int64_t largest) {
  return static_cast<int32_t>(TRY(integer(from, key, smallest, largest)));
}

Result<float> positive(const JsonValue& from, std::string_view key) {
  const JsonValue value = TRY(from.at(key));
  const auto number = static_cast<float>(TRY(value.as_number()));
  if (!(number > 0.0F) || number > std::numeric_limits<float>::max()) {
    return value.error("must be a positive number");
  }
  return number;
}

Result<std::vector<int32_t>> counts(const JsonValue& value, int64_t smallest, int64_t largest) {
  const std::vector<int64_t> wide = TRY(value.as_integers(smallest, largest));
  return std::vector<int32_t>(wide.begin(), wide.end());
}

// Layer ids, each below `layers` and larger than the one before.
Result<std::vector<int32_t>> layer_ids(const JsonValue& from, std::string_view key,
                                       int64_t layers) {
  const JsonValue value = TRY(from.at(key));
  const std::vector<int32_t> ids = TRY(counts(value, 0, layers - 1));
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] <= ids[i - 1]) return value.error("layer ids must ascend");
  }
  return ids;
}

Result<void> require_string(const JsonValue& from, std::string_view key,
                            std::string_view expected) {
  const JsonValue value = TRY(from.at(key));
  const std::string_view found = TRY(value.as_string());
  if (found != expected) {
    return value.error("is \"" + std::string(found) + "\", only \"" + std::string(expected) +
                       "\" is supported");
  }
  return {};
}

Result<void> require_bool(const JsonValue& from, std::string_view key, bool expected) {
  const JsonValue value = TRY(from.at(key));
  if (TRY(value.as_bool()) != expected) {
    return value.error(std::string("only ") + (expected ? "true" : "false") + " is supported");
  }
  return {};
}

Result<void> require_integer(const JsonValue& from, std::string_view key, int64_t expected) {
  const JsonValue value = TRY(from.at(key));
  const int64_t found = TRY(value.as_integer());
  if (found != expected) {
    return value.error("is " + std::to_string(found) + ", only " + std::to_string(expected) +
                       " is supported");
  }
  return {};
}

// Every quantised input is cut into groups of 32 (spec/model.md 0.1).
Result<void> require_multiple(const JsonValue& from, std::string_view key, int64_t factor) {
  const JsonValue value = TRY(from.at(key));
  const int64_t found = TRY(value.as_integer());
  if (found % factor != 0) {
    return value.error("must be a multiple of " + std::to_string(factor) + ", is " +
                       std::to_string(found));
  }
  return {};
}

Result<void> check_family(const JsonValue& root) {
  const JsonValue type = TRY(root.at("model_type"));
  const std::string_view name = TRY(type.as_string());
  if (name != "deepseek_v41") {
    return type.error("is \"" + std::string(name) +
                      "\", only \"deepseek_v41\" (DeepSeek-V4.1) is supported");
  }
  const JsonValue architectures = TRY(root.at("architectures"));
  if (!architectures.is_array() || architectures.size() != 1) {
    return architectures.error("must be an array of one name");
  }
  const JsonValue architecture = architectures.item(0);
  if (TRY(architecture.as_string()) != "DeepseekV41ForCausalLM") {
    return architecture.error("only \"DeepseekV41ForCausalLM\" is supported");
  }
  return {};
}

Result<void> check_quantisation(const JsonValue& root) {
  const JsonValue quantisation = TRY(root.at("quantization_config"));
  TRY(require_string(quantisation, "quant_method", "fp8"));
  TRY(require_string(quantisation, "activation_scheme", "dynamic"));
  TRY(require_string(quantisation, "scale_fmt", "ue8m0"));
  TRY(require_string(quantisation, "expert_dtype", "fp4"));
  if (quantisation.find("fmt").has_value()) TRY(require_string(quantisation, "fmt", "e4m3"));
  const JsonValue block = TRY(quantisation.at("weight_block_size"));
  if (TRY(block.as_integers(1, kWidthMax)) != std::vector<int64_t>{32, 32}) {
    return block.error("only [32, 32] is supported");
  }
  return {};
}

// Properties of the family that the program takes for granted.
Result<void> check_constants(const JsonValue& text) {
  TRY(require_string(text, "model_type", "deepseek_v41_text"));
  TRY(require_string(text, "hidden_act", "silu"));
  TRY(require_bool(text, "attention_bias", false));
  const JsonValue dropout = TRY(text.at("attention_dropout"));
  if (TRY(dropout.as_number()) != 0.0) return dropout.error("only 0 is supported");
  TRY(require_bool(text, "tie_word_embeddings", false));
  TRY(require_integer(text, "num_key_value_heads", 1));
  TRY(require_integer(text, "n_shared_experts", 1));
  TRY(require_string(text, "scoring_func", "sqrtsoftplus"));
  TRY(require_string(text, "topk_method", "noaux_tc"));
  TRY(require_bool(text, "norm_topk_prob", true));
  if (text.find("num_hash_layers").has_value()) TRY(require_integer(text, "num_hash_layers", 0));
  return {};
}

Result<void> read_attention(const JsonValue& text, Config& config) {
  config.heads = TRY(count(text, "num_attention_heads", 1, 4096));
  config.head_dim = TRY(count(text, "head_dim", 1, 8192));
  TRY(require_multiple(text, "head_dim", 32));
  config.rope_dim = TRY(count(text, "qk_rope_head_dim", 2, config.head_dim));
  TRY(require_multiple(text, "qk_rope_head_dim", 2));
  config.q_lora_rank = TRY(count(text, "q_lora_rank", 1, kWidthMax));
  TRY(require_multiple(text, "q_lora_rank", 32));
  config.o_lora_rank = TRY(count(text, "o_lora_rank", 1, kWidthMax));
  TRY(require_multiple(text, "o_lora_rank", 32));
  config.o_groups = TRY(count(text, "o_groups", 1, 4096));
  if (config.heads % config.o_groups != 0) {
    return TRY(text.at("o_groups"))
        .error("must divide num_attention_heads (" + std::to_string(config.heads) + "), is " +
               std::to_string(config.o_groups));
  }
  if (int64_t{config.heads} * config.head_dim > kWidthMax ||
      int64_t{config.o_groups} * config.o_lora_rank > kWidthMax) {
    return TRY(text.at("num_attention_heads")).error("attention is wider than supported");
  }
  config.window = TRY(count(text, "sliding_window", 1, 1 << 16));
  return {};
}

Result<void> read_rope(const JsonValue& text, Config& config) {
  config.positions_max = TRY(integer(text, "max_position_embeddings", 1, kPositionsMax));
  config.rope.theta = TRY(positive(text, "rope_theta"));
  config.rope.compress_theta = TRY(positive(text, "compress_rope_theta"));
  for (const char* key : {"rope_theta", "compress_rope_theta"}) {
    if (TRY(positive(text, key)) <= 1.0F) return TRY(text.at(key)).error("must be above 1");
  }
  const JsonValue scaling = TRY(text.at("rope_scaling"));
  TRY(require_string(scaling, "rope_type", "yarn"));
  config.rope.yarn_factor = TRY(positive(scaling, "factor"));
  config.rope.yarn_original_length =
      TRY(integer(scaling, "original_max_position_embeddings", 0, kPositionsMax));
  config.rope.yarn_beta_fast = TRY(positive(scaling, "beta_fast"));
  config.rope.yarn_beta_slow = TRY(positive(scaling, "beta_slow"));
  return {};
}

Result<void> read_experts(const JsonValue& text, Config& config) {
  config.expert_width = TRY(count(text, "moe_intermediate_size", 1, kWidthMax));
  TRY(require_multiple(text, "moe_intermediate_size", 32));
  config.routed_experts = TRY(count(text, "n_routed_experts", 1, kExpertsMax));
  if (int64_t{config.routed_experts} * config.layers > kExpertTotalMax) {
    return TRY(text.at("n_routed_experts")).error("more experts than supported in all layers");
  }
  config.experts_per_token = TRY(count(text, "num_experts_per_tok", 1, config.routed_experts));
  config.routed_scaling = TRY(positive(text, "routed_scaling_factor"));
  config.swiglu_limit = TRY(positive(text, "swiglu_limit"));
  if (text.find("gate_temp").has_value()) {
    config.gate_temperature = TRY(positive(text, "gate_temp"));
  }
  return {};
}

Result<void> read_streams(const JsonValue& text, Config& config) {
  config.streams = TRY(count(text, "hc_mult", 1, 16));
  config.sinkhorn_iterations = TRY(count(text, "hc_sinkhorn_iters", 1, 1000));
  config.hc_eps = TRY(positive(text, "hc_eps"));
  return {};
}

bool listed(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Result<void> read_sparse_attention(const JsonValue& text, Config& config) {
  const JsonValue ratios = TRY(text.at("compress_ratios"));
  config.compress_ratios = TRY(counts(ratios, 0, 128));
  if (config.compress_ratios.size() < static_cast<size_t>(config.layers)) {
    return ratios.error("has " + std::to_string(config.compress_ratios.size()) + " entries for " +
                        std::to_string(config.layers) + " layers");
  }
  config.kv_sources = TRY(layer_ids(text, "kv_source_layer_ids", config.layers));
  config.index_sources = TRY(layer_ids(text, "index_source_layer_ids", config.layers));
  config.candidate_source = TRY(count(text, "candidate_source_layer_id", -1, config.layers - 1));
  config.index_heads = TRY(count(text, "index_n_heads", 1, 4096));
  config.index_head_dim = TRY(count(text, "index_head_dim", config.rope_dim, 8192));
  TRY(require_multiple(text, "index_head_dim", 32));
  if (int64_t{config.index_heads} * config.index_head_dim > kWidthMax) {
    return TRY(text.at("index_n_heads")).error("the indexer is wider than supported");
  }
  config.index_top_k = TRY(count(text, "index_topk", 1, 1 << 20));
  if (config.candidate_source >= 0) {
    const JsonValue blocks = TRY(text.at("candidate_topk_blocks"));
    config.candidate_blocks = TRY(count(text, "candidate_topk_blocks", 1, 1 << 20));
    config.candidate_block_size = TRY(count(text, "candidate_block_size", 1, 1 << 10));
    // The last block is always in the pool and may hold a single entry.
    const int64_t pool_min =
        (int64_t{config.candidate_blocks} - 1) * config.candidate_block_size + 1;
    if (pool_min < config.index_top_k) {
      return blocks.error("a pool of " + std::to_string(pool_min) +
                          " entries is smaller than index_topk (" +
                          std::to_string(config.index_top_k) + ")");
    }
  }
  return {};
}

Result<void> check_sources(const JsonValue& text, const Config& config) {
  const JsonValue kv = TRY(text.at("kv_source_layer_ids"));
  const JsonValue index = TRY(text.at("index_source_layer_ids"));
  const auto ratio = [&](int32_t layer) {
    return config.compress_ratios[static_cast<size_t>(layer)];
  };
  for (const int32_t layer : config.kv_sources) {
    if (ratio(layer) == 0) return kv.error("layer " + std::to_string(layer) + " has ratio 0");
    if (!listed(config.index_sources, layer)) {
      return index.error("KV source " + std::to_string(layer) + " must be an index source too");
    }
  }
  for (const int32_t layer : config.index_sources) {
    if (ratio(layer) == 0) return index.error("layer " + std::to_string(layer) + " has ratio 0");
  }
  const int32_t candidate = config.candidate_source;
  if (candidate < 0) return {};
  const JsonValue source = TRY(text.at("candidate_source_layer_id"));
  if (!listed(config.kv_sources, candidate)) {
    return source.error("layer " + std::to_string(candidate) + " is not a KV source");
  }
  for (const int32_t layer : config.index_sources) {
    if (layer > candidate && ratio(layer) != ratio(candidate)) {
      return source.error("index source " + std::to_string(layer) + " after it has ratio " +
                          std::to_string(ratio(layer)) + ", not " +
                          std::to_string(ratio(candidate)));
    }
  }
  return {};
}

// "Most recent source before or at l" (spec/model.md 1.1).
Result<void> derive_roles(const JsonValue& text, Config& config) {
  int32_t kv_source = -1;
  int32_t index_source = -1;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    LayerRole role;
    role.ratio = config.compress_ratios[static_cast<size_t>(layer)];
    role.owns_kv = listed(config.kv_sources, layer);
    role.owns_indexer = listed(config.index_sources, layer);
    if (role.owns_kv) kv_source = layer;
    if (role.owns_indexer) index_source = layer;
    if (role.ratio > 0) {
      role.kv_source = kv_source;
      role.index_source = index_source;
      const bool fits =
          kv_source >= 0 && config.compress_ratios[static_cast<size_t>(kv_source)] == role.ratio;
      if (!fits) {
        return TRY(text.at("compress_ratios"))
            .error("layer " + std::to_string(layer) + " has ratio " + std::to_string(role.ratio) +
                   " but no KV source of that ratio before it");
      }
    }
    role.builds_pool = layer == config.candidate_source;
    role.reads_pool =
        config.candidate_source >= 0 && role.owns_indexer && layer > config.candidate_source;
    const auto engram =
        std::find(config.engram.layer_ids.begin(), config.engram.layer_ids.end(), layer);
    if (engram != config.engram.layer_ids.end()) {
      role.engram_index = static_cast<int32_t>(engram - config.engram.layer_ids.begin());
    }
    config.roles.push_back(role);
  }
  return {};
}

Result<void> read_engram(const JsonValue& text, Config& config) {
  EngramConfig& engram = config.engram;
  engram.layer_ids = TRY(layer_ids(text, "engram_layer_ids", config.layers));
  if (engram.layer_ids.empty()) return {};
  const JsonValue rows = TRY(text.at("engram_num_embeddings"));
  engram.table_rows = TRY(rows.as_integers(1, kTableRowsMax));
  if (engram.table_rows.size() != engram.layer_ids.size()) {
    return rows.error("has " + std::to_string(engram.table_rows.size()) + " entries for " +
                      std::to_string(engram.layer_ids.size()) + " Engram layers");
  }
  engram.ngram_size_max = TRY(count(text, "engram_max_ngram_size", 2, 4));
  engram.prime_search_start = TRY(count(text, "engram_vocab_size", 2, 1 << 30));
  engram.heads = TRY(count(text, "engram_n_heads", 1, 256));
  engram.head_dim = TRY(count(text, "engram_head_dim", 1, 8192));
  TRY(require_multiple(text, "engram_head_dim", 32));
  engram.pad_token_id = TRY(count(text, "engram_pad_token_id", 0, config.vocab_size - 1));
  engram.compressed_vocab_size =
      TRY(count(text, "engram_compressed_vocab_size", 1, config.vocab_size));
  if (int64_t{engram.columns()} * engram.head_dim > kWidthMax ||
      int64_t{engram.columns()} * static_cast<int64_t>(engram.layer_ids.size()) >
          kEngramPrimesMax) {
    return TRY(text.at("engram_n_heads")).error("Engram is wider than supported");
  }
  const std::vector<EngramTable> tables =
      engram_tables(engram.prime_search_start, static_cast<int32_t>(engram.layer_ids.size()),
                    engram.ngram_size_max, engram.heads);
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].rows > engram.table_rows[i]) {
      return rows.error("entry " + std::to_string(i) + " is " +
                        std::to_string(engram.table_rows[i]) + ", its hash primes need " +
                        std::to_string(tables[i].rows) + " rows");
    }
  }
  return {};
}

Result<void> read_dspark(const JsonValue& text, Config& config) {
  DsparkConfig& dspark = config.dspark;
  dspark.stages = TRY(count(text, "num_nextn_predict_layers", 0, 16));
  if (dspark.stages == 0) return {};
  dspark.block_size = TRY(count(text, "dspark_block_size", 1, 64));
  dspark.noise_token_id = TRY(count(text, "dspark_noise_token_id", 0, config.vocab_size - 1));
  dspark.target_layer_ids = TRY(layer_ids(text, "dspark_target_layer_ids", config.layers));
  if (dspark.target_layer_ids.empty()) {
    return TRY(text.at("dspark_target_layer_ids")).error("must name at least one layer");
  }
  dspark.markov_rank = TRY(count(text, "dspark_markov_rank", 1, kWidthMax));
  dspark.routed_experts = TRY(count(text, "dspark_n_routed_experts", 1, kExpertsMax));
  // The nested config's own spelling first; some tools write the flat one.
  const char* active = "dspark_num_experts_per_tok";
  if (!text.find(active).has_value() && text.find("dspark_n_activated_experts").has_value()) {
    active = "dspark_n_activated_experts";
  }
  dspark.experts_per_token = TRY(count(text, active, 1, dspark.routed_experts));
  for (size_t i = 0; i < static_cast<size_t>(dspark.stages); ++i) {
    const size_t entry = static_cast<size_t>(config.layers) + i;
    if (entry < config.compress_ratios.size() && config.compress_ratios[entry] != 0) {
      return TRY(text.at("compress_ratios"))
          .item(entry)
          .error("draft stages attend to their window only, the ratio must be 0");
    }
  }
  return {};
}

Result<void> read_vision(const JsonValue& root, Config& config) {
  VisionConfig& vision = config.vision;
  const std::optional<JsonValue> section = root.find("vision_config");
  if (!section.has_value() || section->is_null()) return {};
  vision.layers = TRY(count(*section, "num_hidden_layers", 0, kLayersMax));
  if (vision.layers == 0) return {};
  vision.hidden = TRY(count(*section, "hidden_size", 1, 1 << 16));
  vision.heads = TRY(count(*section, "num_attention_heads", 1, 1024));
  if (vision.hidden % (vision.heads * 4) != 0) {
    // A head is cut into halves for the rotation and these into rows and columns.
    return TRY(section->at("hidden_size")).error("must be a multiple of 4 num_attention_heads");
  }
  vision.intermediate = TRY(count(*section, "intermediate_size", 1, 1 << 17));
  vision.patch_size = TRY(count(*section, "patch_size", 1, 256));
  vision.rope_theta = TRY(positive(*section, "rope_theta"));
  vision.downsample_ratio = TRY(count(*section, "downsample_ratio", 1, 16));
  vision.image_tokens_max = TRY(count(*section, "max_image_tokens", 4, 1 << 20));
  vision.pixels_min = TRY(integer(*section, "min_pixels", 1, int64_t{1} << 31));
  const JsonValue ratio = TRY(section->at("max_wh_ratio"));
  if (!ratio.is_null()) vision.wh_ratio_max = TRY(positive(*section, "max_wh_ratio"));
  config.image_token_id = TRY(count(root, "image_token_id", 0, config.vocab_size - 1));
  return {};
}

Result<void> read_token_ids(const JsonValue& root, Config& config) {
  config.bos_token_id = TRY(count(root, "bos_token_id", 0, config.vocab_size - 1));
  config.eos_token_id = TRY(count(root, "eos_token_id", 0, config.vocab_size - 1));
  config.pad_token_id = TRY(count(root, "pad_token_id", 0, config.vocab_size - 1));
  const std::optional<JsonValue> image = root.find("image_token_id");
  if (image.has_value() && !image->is_null()) {
    config.image_token_id = TRY(count(root, "image_token_id", 0, config.vocab_size - 1));
  }
  return {};
}

}  // namespace

Result<Config> parse_config(std::string_view json) {
  const JsonDocument document = TRY(JsonDocument::parse(
      json, {.bytes_max = size_t{4} << 20, .depth_max = 32, .unique_keys = true}));
  const JsonValue root = document.root();
  TRY(check_family(root));
  TRY(check_quantisation(root));
  const JsonValue text = TRY(root.at("text_config"));
  TRY(check_constants(text));

  Config config;
  config.vocab_size = TRY(count(text, "vocab_size", 1, kVocabMax));
  config.hidden = TRY(count(text, "hidden_size", 1, kWidthMax));
  TRY(require_multiple(text, "hidden_size", 32));
  config.layers = TRY(count(text, "num_hidden_layers", 1, kLayersMax));
  config.norm_eps = TRY(positive(text, "rms_norm_eps"));
  TRY(read_token_ids(root, config));
  TRY(read_attention(text, config));
  TRY(read_rope(text, config));
  TRY(read_experts(text, config));
  TRY(read_streams(text, config));
  TRY(read_sparse_attention(text, config));
  TRY(check_sources(text, config));
  TRY(read_engram(text, config));
  TRY(derive_roles(text, config));
  TRY(read_dspark(text, config));
  TRY(read_vision(root, config));
  return config;
}

}  // namespace galley::model
