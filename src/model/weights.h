// The backbone's tensors as the kernels take them, bound once per layer.
//
// Large matrices are views into the checkpoint's mapping. Only vectors stored
// in another dtype than the kernels read, or misaligned in their file, are
// copied. DSpark and vision tensors belong to whoever runs those parts.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "model/checkpoint.h"

namespace galley::model {

struct CompressorWeights {
  kernels::WeightView wkv;
  kernels::WeightView wgate;  // data is null at ratio 1
  const kernels::Bf16* norm = nullptr;
  kernels::WeightView index_wk;
  const kernels::Bf16* index_k_norm = nullptr;
};

struct IndexerWeights {
  kernels::WeightView wq_b;
  kernels::WeightView weights_proj;
};

struct EngramWeights {
  const uint8_t* table = nullptr;  // E4M3 [rows, head_dim]
  const uint8_t* scale = nullptr;  // UE8M0 [rows, ceil(head_dim/32)]
  int64_t table_rows = 0;
  bool on_host = true;  // table and scale, whatever the other weights' memory
  kernels::WeightView wkv;
  const kernels::Bf16* q_weight = nullptr;  // [n, d]
  const kernels::Bf16* k_weight = nullptr;
};

struct LayerWeights {
  kernels::HcWeights hc_attn;
  kernels::HcWeights hc_ffn;
  const kernels::Bf16* attn_norm = nullptr;
  const kernels::Bf16* ffn_norm = nullptr;

  kernels::WeightView wq_a;
  const kernels::Bf16* q_norm = nullptr;
  kernels::WeightView wq_b;
  kernels::WeightView wkv;
  const kernels::Bf16* kv_norm = nullptr;
  const float* attn_sink = nullptr;
  kernels::WeightView wo_a;
  kernels::WeightView wo_b;
  CompressorWeights compressor;  // KV sources only
  IndexerWeights indexer;        // index sources only
  EngramWeights engram;          // Engram layers only

  kernels::WeightView gate;
  const float* gate_bias = nullptr;
  const float* gate_bias_vl = nullptr;
  std::vector<kernels::ExpertWeights> experts;
  kernels::ExpertWeights shared_expert;
};

class ModelWeights {
 public:
  // The views stay valid as long as the checkpoint's mapping (moving the
  // Checkpoint object keeps it).
  static Result<ModelWeights> bind(const Checkpoint& checkpoint);

  // The same views, for someone who moves them elsewhere; borrows what this owns.
  ModelWeights views() const;

  ModelWeights(ModelWeights&&) = default;
  ModelWeights& operator=(ModelWeights&&) = default;

  kernels::WeightView embed;  // [V, d] bf16
  kernels::WeightView head;
  const kernels::Bf16* norm = nullptr;
  std::vector<LayerWeights> layers;

 private:
  friend class WeightBinder;
  ModelWeights() = default;

  std::deque<std::vector<kernels::Bf16>> owned_bf16_;
  std::deque<std::vector<float>> owned_f32_;
};

}  // namespace galley::model
