// An observer that keeps what one step computed, layer by layer, in the shapes
// of the golden trace.
//
// Expects one sequence whose rows all run at once. Only for verification:
// allocates freely.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "model/step_observer.h"

namespace galley::verify {

// Rows of values widened to f32.
struct FloatRows {
  int64_t cols = 0;
  std::vector<float> values;

  int64_t rows() const { return cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols; }
  std::span<const float> row(int64_t index) const {
    return {values.data() + index * cols, static_cast<size_t>(cols)};
  }
};

struct IntegerRows {
  int64_t cols = 0;
  std::vector<int64_t> values;

  int64_t rows() const { return cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols; }
  std::span<const int64_t> row(int64_t index) const {
    return {values.data() + index * cols, static_cast<size_t>(cols)};
  }
};

// What one row of an index source chose.
struct IndexChoice {
  std::vector<float> scores;      // visible entries
  std::vector<int32_t> selected;  // ascending
  std::vector<int32_t> pool;      // block numbers, at the candidate source
};

struct CapturedLayer {
  FloatRows engram_gate, engram_out;
  IntegerRows engram_rows;
  FloatRows attn_in, attn_out, ffn_in, ffn_out;
  FloatRows router_weights;
  IntegerRows router_experts;
  std::vector<IndexChoice> index;
  FloatRows streams_out, pre_out;
};

class Captured : public model::StepObserver {
 public:
  void embed_in(const model::ObservedRows&, Bf16Rows streams) override;
  void engram(int32_t layer, const model::ObservedRows&, kernels::Rows<const int64_t> ids,
              F32Rows gate, Bf16Rows streams) override;
  void attn_in(int32_t layer, const model::ObservedRows&, Bf16Rows x) override;
  void attn_out(int32_t layer, const model::ObservedRows&, Bf16Rows y) override;
  void ffn_in(int32_t layer, const model::ObservedRows&, Bf16Rows x) override;
  void ffn_out(int32_t layer, const model::ObservedRows&, Bf16Rows y) override;
  void index(int32_t layer, const model::ObservedRows&,
             std::span<const kernels::IndexRow> rows) override;
  void router(int32_t layer, const model::ObservedRows&, kernels::Rows<const int32_t> experts,
              F32Rows weights, std::span<const float> margin) override;
  void layer_out(int32_t layer, const model::ObservedRows&, Bf16Rows streams,
                 F32Rows pre_out) override;
  void main_hidden(int32_t target, const model::ObservedRows&, Bf16Rows mean) override;

  FloatRows embedded;  // [T, n d]
  std::map<int32_t, CapturedLayer> layers;
  std::map<int32_t, FloatRows> targets;
};

}  // namespace galley::verify
