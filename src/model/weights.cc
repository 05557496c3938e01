#include "model/weights.h"

#include <cstring>
#include <string>

#include "kernels/number_formats.h"

namespace galley::model {

// Looks tensors up by name and makes the views of one ModelWeights.
class WeightBinder {
 public:
  WeightBinder(const Checkpoint& checkpoint, ModelWeights& weights)
      : checkpoint_(checkpoint), config_(checkpoint.config()), weights_(weights) {}

  Result<void> bind() {
    weights_.embed = checkpoint_.weight("embed");
    weights_.head = checkpoint_.weight("head");
    weights_.norm = TRY(bf16("norm.weight"));
    weights_.layers.resize(static_cast<size_t>(config_.layers));
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
      TRY(bind_layer("layers." + std::to_string(layer) + ".",
                     config_.roles[static_cast<size_t>(layer)],
                     weights_.layers[static_cast<size_t>(layer)]));
    }
    return {};
  }

 private:
  // bf16 values; those stored as f32 are copied, which must lose nothing.
  Result<const kernels::Bf16*> bf16(const std::string& name) {
    const TensorView& tensor = checkpoint_.tensor(name);
    if (tensor.dtype == DType::kBf16) return tensor.as<kernels::Bf16>();
    CHECK(tensor.dtype == DType::kF32);
    std::vector<kernels::Bf16>& copy = weights_.owned_bf16_.emplace_back();
    copy.reserve(static_cast<size_t>(tensor.shape.elements()));
    for (int64_t i = 0; i < tensor.shape.elements(); ++i) {
      const float value = tensor.as<float>()[i];
      if (kernels::round_bf16(value) != value) {
        return Error{ErrorCode::kUnsupported,
                     name + " is stored as F32 with a value that BF16 cannot hold"};
      }
      copy.push_back(kernels::to_bf16(value));
    }
    return copy.data();
  }

  const float* f32(const std::string& name) { return checkpoint_.tensor(name).as<float>(); }

  kernels::HcWeights hc(const std::string& stem) {
    return {.fn = f32(stem + "_fn"), .base = f32(stem + "_base"), .scale = f32(stem + "_scale")};
  }

  kernels::ExpertWeights expert(const std::string& stem) {
    return {.w1 = checkpoint_.weight(stem + "w1"),
            .w3 = checkpoint_.weight(stem + "w3"),
            .w2 = checkpoint_.weight(stem + "w2")};
  }

  Result<void> bind_layer(const std::string& prefix, const LayerRole& role, LayerWeights& layer) {
    layer.hc_attn = hc(prefix + "hc_attn");
    layer.hc_ffn = hc(prefix + "hc_ffn");
    layer.attn_norm = TRY(bf16(prefix + "attn_norm.weight"));
    layer.ffn_norm = TRY(bf16(prefix + "ffn_norm.weight"));
    TRY(bind_attention(prefix + "attn.", role, layer));
    bind_experts(prefix + "ffn.", layer);
    if (role.engram_index >= 0) TRY(bind_engram(prefix + "engram.", layer.engram));
    return {};
  }

  Result<void> bind_attention(const std::string& prefix, const LayerRole& role,
                              LayerWeights& layer) {
    layer.wq_a = checkpoint_.weight(prefix + "wq_a");
    layer.q_norm = TRY(bf16(prefix + "q_norm.weight"));
    layer.wq_b = checkpoint_.weight(prefix + "wq_b");
    layer.wkv = checkpoint_.weight(prefix + "wkv");
    layer.kv_norm = TRY(bf16(prefix + "kv_norm.weight"));
    layer.attn_sink = f32(prefix + "attn_sink");
    layer.wo_a = checkpoint_.weight(prefix + "wo_a");
    layer.wo_b = checkpoint_.weight(prefix + "wo_b");
    if (role.owns_kv) {
      layer.compressor.wkv = checkpoint_.weight(prefix + "compressor.wkv");
      if (role.ratio > 1) {
        layer.compressor.wgate = checkpoint_.weight(prefix + "compressor.wgate");
      }
      layer.compressor.norm = TRY(bf16(prefix + "compressor.norm.weight"));
      layer.compressor.index_wk = checkpoint_.weight(prefix + "indexer.wk");
      layer.compressor.index_k_norm = TRY(bf16(prefix + "indexer.k_norm.weight"));
    }
    if (role.owns_indexer) {
      layer.indexer.wq_b = checkpoint_.weight(prefix + "indexer.wq_b");
      layer.indexer.weights_proj = checkpoint_.weight(prefix + "indexer.weights_proj");
    }
    return {};
  }

  void bind_experts(const std::string& prefix, LayerWeights& layer) {
    layer.gate = checkpoint_.weight(prefix + "gate");
    layer.gate_bias = f32(prefix + "gate.bias");
    layer.gate_bias_vl = f32(prefix + "gate.bias_vl");
    layer.experts.reserve(static_cast<size_t>(config_.routed_experts));
    for (int32_t e = 0; e < config_.routed_experts; ++e) {
      layer.experts.push_back(expert(prefix + "experts." + std::to_string(e) + "."));
    }
    layer.shared_expert = expert(prefix + "shared_experts.");
  }

  Result<void> bind_engram(const std::string& prefix, EngramWeights& engram) {
    const TensorView& table = checkpoint_.tensor(prefix + "embed.weight");
    engram.table = table.as<uint8_t>();
    engram.scale = checkpoint_.tensor(prefix + "embed.scale").as<uint8_t>();
    engram.table_rows = table.shape[0];
    engram.wkv = checkpoint_.weight(prefix + "wkv");
    engram.q_weight = TRY(bf16(prefix + "q_weight"));
    engram.k_weight = TRY(bf16(prefix + "k_weight"));
    return {};
  }

  const Checkpoint& checkpoint_;
  const Config& config_;
  ModelWeights& weights_;
};

ModelWeights ModelWeights::views() const {
  ModelWeights copy;
  copy.embed = embed;
  copy.head = head;
  copy.norm = norm;
  copy.layers = layers;
  return copy;
}

Result<ModelWeights> ModelWeights::bind(const Checkpoint& checkpoint) {
  ModelWeights weights;
  TRY(WeightBinder(checkpoint, weights).bind());
  return weights;
}

}  // namespace galley::model
