#include "model/placed_weights.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace galley::model {
namespace {

using kernels::ExpertWeights;
using kernels::MemoryBlock;
using kernels::MoeWeights;
using kernels::WeightFolds;
using kernels::WeightView;

constexpr int64_t kAlignment = 256;  // a kernel's widest load, and whole sectors

// Every tensor that kernels read, as a pointer that can be moved and its bytes. The visitor may
// take a matrix of quantised inputs, or all experts of a layer, as one: then their tensors are not
// visited.
template <class Visitor>
class TensorWalk {
 public:
  TensorWalk(const Config& config, ModelWeights& weights, Visitor& visitor)
      : config_(config), weights_(weights), visitor_(visitor) {}

  void run() {
    matrix(weights_.embed);
    matrix(weights_.head);
    vector(weights_.norm, config_.hidden);
    for (size_t i = 0; i < weights_.layers.size(); ++i) {
      layer(config_.roles[i], weights_.layers[i]);
    }
  }

 private:
  template <class T>
  void vector(const T*& data, int64_t count) {
    if (data == nullptr) return;
    const void* place = data;
    visitor_.tensor(place, count * static_cast<int64_t>(sizeof(T)));
    data = static_cast<const T*>(place);
  }

  void matrix(kernels::WeightView& view) {
    if (view.data == nullptr) return;
    visitor_.tensor(view.data, view.data_bytes());
    if (view.scale != nullptr) vector(view.scale, view.scale_bytes());
  }
  // Of a product that quantises its input.
  void quantised(kernels::WeightView& view) {
    if (view.data != nullptr && !visitor_.matrix(view)) matrix(view);
  }

  void hyper_connection(kernels::HcWeights& hc) {
    vector(hc.fn, int64_t{config_.hc_coefficients()} * config_.streams * config_.hidden);
    vector(hc.base, config_.hc_coefficients());
    vector(hc.scale, 3);
  }

  void expert(kernels::ExpertWeights& one) {
    matrix(one.w1);
    matrix(one.w3);
    matrix(one.w2);
  }

  void layer(const LayerRole& role, LayerWeights& w) {
    hyper_connection(w.hc_attn);
    hyper_connection(w.hc_ffn);
    vector(w.attn_norm, config_.hidden);
    vector(w.ffn_norm, config_.hidden);
    quantised(w.wq_a);
    vector(w.q_norm, config_.q_lora_rank);
    quantised(w.wq_b);
    quantised(w.wkv);
    vector(w.kv_norm, config_.head_dim);
    vector(w.attn_sink, config_.heads);
    matrix(w.wo_a);
    quantised(w.wo_b);
    matrix(w.compressor.wkv);
    matrix(w.compressor.wgate);
    vector(w.compressor.norm, config_.head_dim);
    matrix(w.compressor.index_wk);
    vector(w.compressor.index_k_norm, config_.index_head_dim);
    quantised(w.indexer.wq_b);
    matrix(w.indexer.weights_proj);
    if (role.engram_index >= 0) engram(w.engram);
    matrix(w.gate);
    vector(w.gate_bias, config_.routed_experts);
    vector(w.gate_bias_vl, config_.routed_experts);
    if (visitor_.experts(w, config_.swiglu_limit)) return;
    for (kernels::ExpertWeights& one : w.experts) expert(one);
    expert(w.shared_expert);
  }

  void engram(EngramWeights& w) {
    const int64_t width = config_.engram.head_dim;
    quantised(w.wkv);
    vector(w.q_weight, int64_t{config_.streams} * config_.hidden);
    vector(w.k_weight, int64_t{config_.streams} * config_.hidden);
    if (w.table_rows * width > kPlacedTableBytesMax) return;
    w.on_host = false;
    vector(w.table, w.table_rows * width);
    vector(w.scale, w.table_rows * ((width + 31) / 32));
  }

  const Config& config_;
  ModelWeights& weights_;
  Visitor& visitor_;
};

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

MoeWeights moe_of(const LayerWeights& w, float limit) {
  return {.experts = w.experts, .shared = w.shared_expert, .swiglu_limit = limit};
}

// Where everything goes: a place in one block for each tensor that is kept as stored, a block of
// its own for each folded matrix and each folded layer of experts, and room for what is folded
// next. Layers that share a tensor share its copy.
class Places {
 public:
  explicit Places(WeightFolds* folds) : folds_(folds) {}

  // --- the visitor that counts -------------------------------------------------
  void tensor(const void* data, int64_t bytes) {
    if (bytes > 0 && begin_.try_emplace({data, bytes}, raw_bytes_).second) {
      raw_.push_back({data, bytes});
      raw_bytes_ += aligned(bytes);
    }
  }
  bool matrix(const WeightView& view) {
    const int64_t bytes = folds_ == nullptr ? 0 : folds_->matrix_bytes(view);
    if (bytes == 0) return false;
    if (folded_.contains(view.data)) return true;
    Folded& one = start(view.data, bytes);
    one.parts.push_back({view, {}, {}});
    return true;
  }
  bool experts(const LayerWeights& w, float limit) {
    const int64_t bytes = folds_ == nullptr ? 0 : folds_->experts_bytes(moe_of(w, limit));
    if (bytes == 0) return false;
    const void* key = w.experts[0].w1.data;
    if (folded_.contains(key)) return true;
    Folded& one = start(key, bytes);
    one.experts = w.experts;
    one.limit = limit;
    for (const ExpertWeights& expert : w.experts) {
      one.parts.push_back({expert.w1, expert.w3, expert.w2});
    }
    one.parts.push_back({w.shared_expert.w1, w.shared_expert.w3, w.shared_expert.w2});
    return true;
  }

  int64_t total() const { return raw_bytes_ + folded_bytes_ + staging_bytes(); }

  // --- taking the memory and filling it ------------------------------------------
  Result<void> fill(kernels::Memory& memory, const UploadProgress& progress) {
    raw_block_ = TRY(MemoryBlock::create(memory, raw_bytes_, "the weights"));
    staging_ = TRY(MemoryBlock::create(memory, staging_bytes(), "weights that are folded"));
    for (const void* key : order_) {
      Folded& one = folded_.at(key);
      one.block = TRY(MemoryBlock::create(memory, one.bytes, "folded weights"));
    }
    std::vector<UploadPiece> pieces;
    for (const Tensor& tensor : raw_) {
      pieces.push_back({tensor.first, raw_block_.data() + begin_.at(tensor), tensor.second});
    }
    std::map<size_t, std::pair<Folded*, size_t>> part_of;  // by the piece that completes it
    for (const void* key : order_) {
      Folded& one = folded_.at(key);
      for (size_t part = 0; part < one.parts.size(); ++part) {
        stage(one.parts[part], pieces);
        pieces.back().then = true;
        part_of[pieces.size() - 1] = {&one, part};
      }
    }
    TRY(upload(memory, pieces, {}, progress, [&](size_t piece) -> Result<void> {
      const auto& [one, part] = part_of.at(piece);
      return fold(memory, *one, part);
    }));
    staging_ = {};
    return {};
  }

  const void* placed(const void* data, int64_t bytes) const {
    return raw_block_.data() + begin_.at({data, bytes});
  }
  // Null: kept as stored after all, and placed by then.
  const std::byte* folded(const void* key) const {
    const Folded& one = folded_.at(key);
    return one.misfits ? nullptr : one.block.data();
  }
  void move_stored(WeightView& view) const {
    view.data = stored_at_.at(view.data);
    if (view.scale != nullptr) {
      view.scale = reinterpret_cast<const uint8_t*>(stored_at_.at(view.scale));
    }
  }
  int64_t rounded() const { return rounded_; }
  int64_t misfits() const { return misfits_; }

  MemoryBlock take_raw() { return std::move(raw_block_); }
  std::vector<MemoryBlock> take_folded() {
    std::vector<MemoryBlock> blocks = std::move(stored_);
    for (auto& [key, one] : folded_) blocks.push_back(std::move(one.block));
    return blocks;
  }

 private:
  using Tensor = std::pair<const void*, int64_t>;  // data, bytes
  using Part = std::array<WeightView, 3>;          // a matrix alone, or w1, w3, w2

  struct Folded {
    int64_t bytes = 0;
    std::vector<Part> parts;
    std::span<const ExpertWeights> experts;  // none: a matrix
    float limit = 0;
    MemoryBlock block;
    bool misfits = false;
  };

  Folded& start(const void* key, int64_t bytes) {
    order_.push_back(key);
    folded_bytes_ += bytes;
    Folded& one = folded_[key];
    one.bytes = bytes;
    return one;
  }

  static int64_t staged_bytes(const Part& part) {
    int64_t bytes = 0;
    for (const WeightView& view : part) {
      if (view.data != nullptr) bytes += aligned(view.data_bytes()) + aligned(view.scale_bytes());
    }
    return bytes;
  }
  int64_t staging_bytes() const {
    int64_t most = 0;
    for (const auto& [key, one] : folded_) {
      for (const Part& part : one.parts) most = std::max(most, staged_bytes(part));
    }
    return most;
  }

  // The views of `part` in the staging room; its pieces, if wanted.
  Part stage(const Part& part, std::vector<UploadPiece>& pieces) const {
    Part staged = part;
    std::byte* to = staging_.data();
    for (WeightView& view : staged) {
      if (view.data == nullptr) continue;
      pieces.push_back({view.data, to, view.data_bytes()});
      view.data = to;
      to += aligned(view.data_bytes());
      if (view.scale_bytes() == 0) continue;
      pieces.push_back({view.scale, to, view.scale_bytes()});
      view.scale = reinterpret_cast<const uint8_t*>(to);
      to += aligned(view.scale_bytes());
    }
    return staged;
  }

  Result<void> fold(kernels::Memory& memory, Folded& one, size_t part) {
    std::vector<UploadPiece> unused;
    const Part staged = stage(one.parts[part], unused);
    if (one.experts.empty()) {
      folds_->fold_matrix(staged[0], one.block.data());
    } else {
      // Shapes alone matter; `experts` are still those of the mapping.
      const MoeWeights layer{
          .experts = one.experts,
          .shared = {one.parts.back()[0], one.parts.back()[1], one.parts.back()[2]},
          .swiglu_limit = one.limit};
      folds_->fold_expert(layer, static_cast<int32_t>(part), {staged[0], staged[1], staged[2]},
                          one.block.data());
    }
    if (part + 1 < one.parts.size()) return {};
    const kernels::FoldCounts counts = TRY(folds_->take_counts());
    rounded_ += counts.rounded;
    misfits_ += counts.misfits;
    one.misfits = counts.misfits > 0;
    return one.misfits ? keep_stored(memory, one) : Result<void>();
  }

  // A weight that does not fold: as stored, in a block of its own. Rare, so without the ring.
  Result<void> keep_stored(kernels::Memory& memory, Folded& one) {
    one.block = {};
    int64_t bytes = 0;
    for (const Part& part : one.parts) bytes += staged_bytes(part);
    stored_.push_back(TRY(MemoryBlock::create(memory, bytes, "weights that do not fold")));
    std::byte* to = stored_.back().data();
    const auto keep = [&](const void* data, int64_t size) {
      memory.write(to, data, size);
      stored_at_[data] = to;
      to += aligned(size);
    };
    for (const Part& part : one.parts) {
      for (const WeightView& view : part) {
        if (view.data == nullptr) continue;
        keep(view.data, view.data_bytes());
        if (view.scale_bytes() > 0) keep(view.scale, view.scale_bytes());
      }
    }
    return {};
  }

  WeightFolds* folds_;
  std::map<Tensor, int64_t> begin_;
  std::vector<Tensor> raw_;
  int64_t raw_bytes_ = 0;
  std::map<const void*, Folded> folded_;  // by the first byte of the matrix, or of expert 0's w1
  std::vector<const void*> order_;
  int64_t folded_bytes_ = 0;
  MemoryBlock raw_block_;
  MemoryBlock staging_;
  std::vector<MemoryBlock> stored_;
  std::map<const void*, std::byte*> stored_at_;
  int64_t rounded_ = 0;
  int64_t misfits_ = 0;
};

// The visitor that points every view at its place.
class Mover {
 public:
  Mover(const Places& places, WeightFolds* folds) : places_(places), folds_(folds) {}

  void tensor(const void*& data, int64_t bytes) const {
    if (bytes > 0) data = places_.placed(data, bytes);
  }
  bool matrix(WeightView& view) const {
    if (folds_ == nullptr || folds_->matrix_bytes(view) == 0) return false;
    if (const std::byte* to = places_.folded(view.data)) {
      view = kernels::folded_view(view, to);
    } else {
      places_.move_stored(view);
    }
    return true;
  }
  bool experts(LayerWeights& w, float limit) const {
    if (folds_ == nullptr || folds_->experts_bytes(moe_of(w, limit)) == 0) return false;
    const std::byte* to = places_.folded(w.experts[0].w1.data);
    const auto move = [&](ExpertWeights& one) {
      for (WeightView* view : {&one.w1, &one.w3, &one.w2}) {
        if (to != nullptr) {
          *view = kernels::folded_view(*view, to);
        } else {
          places_.move_stored(*view);
        }
      }
    };
    for (ExpertWeights& one : w.experts) move(one);
    move(w.shared_expert);
    return true;
  }

 private:
  const Places& places_;
  WeightFolds* folds_;
};

// This rank's experts alone, where it has not all of them.
void keep_experts(ModelWeights& weights, PlacedExperts kept) {
  if (kept.count == 0) return;
  for (LayerWeights& layer : weights.layers) {
    std::vector<ExpertWeights>& all = layer.experts;
    const auto first = std::min<int64_t>(kept.first, std::ssize(all));
    const auto end = std::min<int64_t>(first + kept.count, std::ssize(all));
    all.erase(all.begin() + end, all.end());
    all.erase(all.begin(), all.begin() + first);
  }
}

}  // namespace

int64_t placed_bytes(const Model& model, kernels::Ops& ops, PlacedExperts experts) {
  if (ops.memory().is_host()) return 0;
  ModelWeights views = model.weights().views();
  keep_experts(views, experts);
  Places places(ops.folds());
  TensorWalk(model.config(), views, places).run();
  return places.total();
}

Result<PlacedWeights> PlacedWeights::create(const Model& model, kernels::Ops& ops,
                                            PlacedExperts experts, const UploadProgress& progress) {
  PlacedWeights placed;
  placed.weights_ = &model.weights();
  const bool on_host = ops.memory().is_host();
  if (on_host && experts.count == 0) return placed;

  placed.copy_ = std::make_unique<ModelWeights>(model.weights().views());
  placed.weights_ = placed.copy_.get();
  keep_experts(*placed.copy_, experts);
  if (on_host) return placed;
  Places places(ops.folds());
  TensorWalk(model.config(), *placed.copy_, places).run();
  TRY(places.fill(ops.memory(), progress));
  Mover mover(places, ops.folds());
  TensorWalk(model.config(), *placed.copy_, mover).run();
  placed.rounded_ = places.rounded();
  placed.misfits_ = places.misfits();
  placed.block_ = places.take_raw();
  placed.folded_ = places.take_folded();
  return placed;
}

}  // namespace galley::model
