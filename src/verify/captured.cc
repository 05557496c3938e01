#include "verify/captured.h"

#include "kernels/number_formats.h"

namespace galley::verify {

namespace {

FloatRows copy(model::StepObserver::F32Rows rows) {
  FloatRows result;
  result.cols = rows.cols;
  for (int64_t r = 0; r < rows.rows; ++r) {
    result.values.insert(result.values.end(), rows.row(r), rows.row(r) + rows.cols);
  }
  return result;
}

FloatRows copy(model::StepObserver::Bf16Rows rows) {
  FloatRows result;
  result.cols = rows.cols;
  result.values.reserve(static_cast<size_t>(rows.rows * rows.cols));
  for (int64_t r = 0; r < rows.rows; ++r) {
    for (int64_t c = 0; c < rows.cols; ++c) {
      result.values.push_back(kernels::to_f32(rows.row(r)[c]));
    }
  }
  return result;
}

template <class T>
IntegerRows copy_integers(kernels::Rows<const T> rows) {
  IntegerRows result;
  result.cols = rows.cols;
  for (int64_t r = 0; r < rows.rows; ++r) {
    result.values.insert(result.values.end(), rows.row(r), rows.row(r) + rows.cols);
  }
  return result;
}

}  // namespace

void Captured::embed_in(const model::ObservedRows&, Bf16Rows streams) { embedded = copy(streams); }

void Captured::engram(int32_t layer, const model::ObservedRows&, kernels::Rows<const int64_t> ids,
                      F32Rows gate, Bf16Rows streams) {
  CapturedLayer& captured = layers[layer];
  captured.engram_rows = copy_integers(ids);
  captured.engram_gate = copy(gate);
  captured.engram_out = copy(streams);
}

void Captured::attn_in(int32_t layer, const model::ObservedRows&, Bf16Rows x) {
  layers[layer].attn_in = copy(x);
}

void Captured::attn_out(int32_t layer, const model::ObservedRows&, Bf16Rows y) {
  layers[layer].attn_out = copy(y);
}

void Captured::ffn_in(int32_t layer, const model::ObservedRows&, Bf16Rows x) {
  layers[layer].ffn_in = copy(x);
}

void Captured::ffn_out(int32_t layer, const model::ObservedRows&, Bf16Rows y) {
  layers[layer].ffn_out = copy(y);
}

void Captured::index(int32_t layer, const model::ObservedRows&,
                     std::span<const kernels::IndexRow> rows) {
  std::vector<IndexChoice>& choices = layers[layer].index;
  choices.clear();
  for (const kernels::IndexRow& row : rows) {
    IndexChoice choice;
    if (row.scores != nullptr) choice.scores.assign(row.scores, row.scores + row.visible);
    choice.selected.assign(row.selected, row.selected + *row.selected_count);
    if (row.built_pool != nullptr) {
      choice.pool.assign(row.built_pool, row.built_pool + *row.built_pool_count);
    }
    choices.push_back(std::move(choice));
  }
}

void Captured::router(int32_t layer, const model::ObservedRows&,
                      kernels::Rows<const int32_t> experts, F32Rows weights,
                      std::span<const float> /*margin*/) {
  layers[layer].router_experts = copy_integers(experts);
  layers[layer].router_weights = copy(weights);
}

void Captured::layer_out(int32_t layer, const model::ObservedRows&, Bf16Rows streams,
                         F32Rows pre_out) {
  layers[layer].streams_out = copy(streams);
  layers[layer].pre_out = copy(pre_out);
}

void Captured::main_hidden(int32_t target, const model::ObservedRows&, Bf16Rows mean) {
  targets[target] = copy(mean);
}

}  // namespace galley::verify
