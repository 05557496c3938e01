#include "model/inventory.h"

#include <array>

namespace galley::model {
namespace {

constexpr int64_t kBlock = 32;  // quantisation_config.weight_block_size, checked by the config

int64_t blocks(int64_t width) { return (width + kBlock - 1) / kBlock; }

class Inventory {
 public:
  explicit Inventory(const Config& config) : c_(config) {}

  std::vector<ExpectedTensor> take() {
    reserve();
    bf16("embed.weight", {c_.vocab_size, c_.hidden}, Part::kEmbedding);
    bf16("head.weight", {c_.vocab_size, c_.hidden}, Part::kHead);
    norm("norm.weight", c_.hidden, Part::kNorms);
    for (int32_t layer = 0; layer < c_.layers; ++layer) add_layer(layer);
    for (int32_t stage = 0; stage < c_.dspark.stages; ++stage) add_stage(stage);
    if (c_.vision.layers > 0) add_vision();
    return std::move(list_);
  }

 private:
  // Where a block's tensors are counted: under their own parts, or all under DSpark.
  struct Parts {
    Part norms = Part::kNorms;
    Part attention = Part::kAttention;
    Part router = Part::kRouter;
    Part shared = Part::kSharedExperts;
    Part routed = Part::kRoutedExperts;
    Part hyper = Part::kHyperConnections;
  };

  void reserve() {
    const int64_t experts = int64_t{c_.layers} * c_.routed_experts +
                            int64_t{c_.dspark.stages} * c_.dspark.routed_experts;
    list_.reserve(
        static_cast<size_t>(6 * experts + int64_t{64} * (c_.layers + c_.dspark.stages + 8)));
  }

  void add(std::string name, Shape shape, Storage storage, Part part) {
    list_.push_back({std::move(name), shape, storage, part});
  }
  void bf16(std::string name, Shape shape, Part part) {
    add(std::move(name), shape, Storage::kBf16, part);
  }
  void f32(std::string name, Shape shape, Part part) {
    add(std::move(name), shape, Storage::kF32, part);
  }
  void norm(std::string name, int64_t width, Part part) {
    add(std::move(name), {width}, Storage::kBf16OrF32, part);
  }
  // E4M3 with one scale per 32 x 32 tile, the last one of a side perhaps partial.
  void fp8(const std::string& stem, int64_t out, int64_t in, Part part) {
    add(stem + ".weight", {out, in}, Storage::kFp8, part);
    add(stem + ".scale", {blocks(out), blocks(in)}, Storage::kScale, part);
  }
  // E2M1 pairs with one scale per row and 32 inputs.
  void fp4(const std::string& stem, int64_t out, int64_t in, Part part) {
    add(stem + ".weight", {out, in / 2}, Storage::kPackedFp4, part);
    add(stem + ".scale", {out, blocks(in)}, Storage::kScale, part);
  }

  // What backbone layers and draft stages share.
  void add_block(const std::string& prefix, int64_t experts, const Parts& parts) {
    const int64_t d = c_.hidden;
    norm(prefix + "attn_norm.weight", d, parts.norms);
    norm(prefix + "ffn_norm.weight", d, parts.norms);
    for (const char* site : {"hc_attn", "hc_ffn"}) {
      f32(prefix + site + "_fn", {c_.hc_coefficients(), c_.streams * d}, parts.hyper);
      f32(prefix + site + "_base", {c_.hc_coefficients()}, parts.hyper);
      f32(prefix + site + "_scale", {3}, parts.hyper);
    }
    const std::string attn = prefix + "attn.";
    const int64_t q_width = int64_t{c_.heads} * c_.head_dim;
    const int64_t o_width = int64_t{c_.o_groups} * c_.o_lora_rank;
    f32(attn + "attn_sink", {c_.heads}, parts.attention);
    fp8(attn + "wq_a", c_.q_lora_rank, d, parts.attention);
    norm(attn + "q_norm.weight", c_.q_lora_rank, parts.norms);
    fp8(attn + "wq_b", q_width, c_.q_lora_rank, parts.attention);
    fp8(attn + "wkv", c_.head_dim, d, parts.attention);
    norm(attn + "kv_norm.weight", c_.head_dim, parts.norms);
    fp8(attn + "wo_a", o_width, q_width / c_.o_groups, parts.attention);
    fp8(attn + "wo_b", d, o_width, parts.attention);
    const std::string ffn = prefix + "ffn.";
    bf16(ffn + "gate.weight", {experts, d}, parts.router);
    f32(ffn + "gate.bias", {experts}, parts.router);
    f32(ffn + "gate.bias_vl", {experts}, parts.router);
    for (const char* matrix : {"w1", "w3"}) {
      fp8(ffn + "shared_experts." + matrix, c_.expert_width, d, parts.shared);
    }
    fp8(ffn + "shared_experts.w2", d, c_.expert_width, parts.shared);
    for (int64_t expert = 0; expert < experts; ++expert) {
      const std::string stem = ffn + "experts." + std::to_string(expert);
      fp4(stem + ".w1", c_.expert_width, d, parts.routed);
      fp4(stem + ".w3", c_.expert_width, d, parts.routed);
      fp4(stem + ".w2", d, c_.expert_width, parts.routed);
    }
  }

  void add_layer(int32_t layer) {
    const LayerRole& role = c_.roles[static_cast<size_t>(layer)];
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    add_block(prefix, c_.routed_experts, Parts{});
    if (role.owns_kv) add_compressor(prefix + "attn.", role.ratio);
    if (role.owns_indexer) {
      const std::string indexer = prefix + "attn.indexer.";
      fp8(indexer + "wq_b", int64_t{c_.index_heads} * c_.index_head_dim, c_.q_lora_rank,
          Part::kIndexer);
      bf16(indexer + "weights_proj.weight", {c_.index_heads, c_.hidden}, Part::kIndexer);
    }
    if (role.engram_index >= 0) add_engram(prefix + "engram.", role.engram_index);
  }

  void add_compressor(const std::string& attn, int32_t ratio) {
    bf16(attn + "compressor.wkv.weight", {c_.head_dim, c_.hidden}, Part::kIndexer);
    if (ratio > 1) {
      bf16(attn + "compressor.wgate.weight", {c_.head_dim, c_.hidden}, Part::kIndexer);
    }
    norm(attn + "compressor.norm.weight", c_.head_dim, Part::kIndexer);
    add(attn + "indexer.wk.weight", {c_.index_head_dim, c_.head_dim}, Storage::kBf16OrF32,
        Part::kIndexer);
    norm(attn + "indexer.k_norm.weight", c_.index_head_dim, Part::kIndexer);
  }

  void add_engram(const std::string& engram, int32_t index) {
    const EngramConfig& e = c_.engram;
    const int64_t rows = e.table_rows[static_cast<size_t>(index)];
    // A table has one scale per row, not per tile of 32 rows.
    add(engram + "embed.weight", {rows, e.head_dim}, Storage::kFp8, Part::kEngramTables);
    add(engram + "embed.scale", {rows, blocks(e.head_dim)}, Storage::kScale, Part::kEngramTables);
    fp8(engram + "wkv", (c_.streams + 1) * int64_t{c_.hidden}, e.width(), Part::kEngramProjections);
    for (const char* gate : {"q_weight", "k_weight"}) {
      add(engram + gate, {c_.streams, c_.hidden}, Storage::kBf16OrF32, Part::kEngramProjections);
    }
  }

  void add_stage(int32_t stage) {
    constexpr Part kDraft = Part::kDspark;
    const std::string prefix = "mtp." + std::to_string(stage) + ".";
    const int64_t d = c_.hidden;
    add_block(prefix, c_.dspark.routed_experts, {kDraft, kDraft, kDraft, kDraft, kDraft, kDraft});
    if (stage == 0) {
      fp8(prefix + "main_proj", d, d * static_cast<int64_t>(c_.dspark.target_layer_ids.size()),
          kDraft);
      norm(prefix + "main_norm.weight", d, kDraft);
    }
    if (stage == c_.dspark.stages - 1) {
      norm(prefix + "norm.weight", d, kDraft);
      bf16(prefix + "markov_head.embed.weight", {c_.vocab_size, c_.dspark.markov_rank}, kDraft);
      bf16(prefix + "markov_head.head.weight", {c_.vocab_size, c_.dspark.markov_rank}, kDraft);
      add(prefix + "confidence_head.proj.weight", {1, d + c_.dspark.markov_rank},
          Storage::kBf16OrF32, kDraft);
    }
  }

  void add_vision() {
    const VisionConfig& v = c_.vision;
    const int64_t width = v.hidden;
    const int64_t d = c_.hidden;
    const auto matrix = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
      add(name + ".weight", {out, in}, Storage::kBf16OrF32, Part::kVision);
      if (bias) add(name + ".bias", {out}, Storage::kBf16OrF32, Part::kVision);
    };
    matrix("vision.patch_embed.proj", width, int64_t{3} * v.patch_size * v.patch_size, true);
    for (int32_t block = 0; block < v.layers; ++block) {
      const std::string prefix = "vision.blocks." + std::to_string(block) + ".";
      norm(prefix + "norm1.weight", width, Part::kVision);
      norm(prefix + "norm2.weight", width, Part::kVision);
      matrix(prefix + "attn.wqkv", 3 * width, width, true);
      matrix(prefix + "attn.wo", width, width, true);
      matrix(prefix + "mlp.w1", int64_t{2} * v.intermediate, width, false);
      matrix(prefix + "mlp.w2", width, v.intermediate, false);
    }
    norm("vision.norm.weight", width, Part::kVision);
    matrix("aligner.w1", d, width * v.downsample_ratio * v.downsample_ratio, true);
    matrix("aligner.w2", d, d, true);
    for (const char* name : {"image_start", "image_end", "image_newline"}) {
      norm(name, d, Part::kVision);
    }
  }

  const Config& c_;
  std::vector<ExpectedTensor> list_;
};

}  // namespace

std::string_view part_name(Part part) {
  constexpr std::array<std::string_view, kPartCount> kNames = {"embedding",
                                                               "head",
                                                               "norms",
                                                               "attention",
                                                               "compressors and indexers",
                                                               "routers",
                                                               "shared experts",
                                                               "routed experts",
                                                               "hyper-connections",
                                                               "Engram tables",
                                                               "Engram projections",
                                                               "DSpark",
                                                               "vision"};
  return kNames[static_cast<size_t>(part)];
}

bool accepts(Storage storage, DType dtype) {
  switch (storage) {
    case Storage::kBf16:
      return dtype == DType::kBf16;
    case Storage::kF32:
      return dtype == DType::kF32;
    case Storage::kBf16OrF32:
      return dtype == DType::kBf16 || dtype == DType::kF32;
    case Storage::kFp8:
      return dtype == DType::kF8E4M3;
    case Storage::kPackedFp4:
      return dtype == DType::kI8;
    case Storage::kScale:
      return dtype == DType::kF8E8M0;
  }
  return false;
}

DType released_dtype(Storage storage) {
  switch (storage) {
    case Storage::kBf16:
    case Storage::kBf16OrF32:
      return DType::kBf16;
    case Storage::kF32:
      return DType::kF32;
    case Storage::kFp8:
      return DType::kF8E4M3;
    case Storage::kPackedFp4:
      return DType::kI8;
    case Storage::kScale:
      return DType::kF8E8M0;
  }
  return DType::kU8;
}

std::string_view storage_name(Storage storage) {
  switch (storage) {
    case Storage::kBf16:
      return "BF16";
    case Storage::kF32:
      return "F32";
    case Storage::kBf16OrF32:
      return "BF16 or F32";
    case Storage::kFp8:
      return "F8_E4M3";
    case Storage::kPackedFp4:
      return "I8 (packed E2M1)";
    case Storage::kScale:
      return "F8_E8M0";
  }
  return "?";
}

std::vector<ExpectedTensor> expected_tensors(const Config& config) {
  return Inventory(config).take();
}

}  // namespace galley::model
