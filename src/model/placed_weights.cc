#include "model/placed_weights.h"

#include <map>
#include <utility>
#include <vector>

namespace galley::model {
namespace {

constexpr int64_t kAlignment = 256;  // a kernel's widest load, and whole sectors

// Every tensor that kernels read, as a pointer that can be moved and its bytes.
class TensorWalk {
 public:
  TensorWalk(const Config& config, ModelWeights& weights) : config_(config), weights_(weights) {}

  template <class Visit>
  void run(const Visit& visit) {
    matrix(weights_.embed, visit);
    matrix(weights_.head, visit);
    vector(weights_.norm, config_.hidden, visit);
    for (size_t i = 0; i < weights_.layers.size(); ++i) {
      layer(config_.roles[i], weights_.layers[i], visit);
    }
  }

 private:
  template <class T, class Visit>
  void vector(const T*& data, int64_t count, const Visit& visit) {
    if (data == nullptr) return;
    const void* place = data;
    visit(place, count * static_cast<int64_t>(sizeof(T)));
    data = static_cast<const T*>(place);
  }

  template <class Visit>
  void matrix(kernels::WeightView& view, const Visit& visit) {
    if (view.data == nullptr) return;
    visit(view.data, view.data_bytes());
    if (view.scale != nullptr) vector(view.scale, view.scale_bytes(), visit);
  }

  template <class Visit>
  void hyper_connection(kernels::HcWeights& hc, const Visit& visit) {
    vector(hc.fn, int64_t{config_.hc_coefficients()} * config_.streams * config_.hidden, visit);
    vector(hc.base, config_.hc_coefficients(), visit);
    vector(hc.scale, 3, visit);
  }

  template <class Visit>
  void expert(kernels::ExpertWeights& one, const Visit& visit) {
    matrix(one.w1, visit);
    matrix(one.w3, visit);
    matrix(one.w2, visit);
  }

  template <class Visit>
  void layer(const LayerRole& role, LayerWeights& w, const Visit& visit) {
    hyper_connection(w.hc_attn, visit);
    hyper_connection(w.hc_ffn, visit);
    vector(w.attn_norm, config_.hidden, visit);
    vector(w.ffn_norm, config_.hidden, visit);
    matrix(w.wq_a, visit);
    vector(w.q_norm, config_.q_lora_rank, visit);
    matrix(w.wq_b, visit);
    matrix(w.wkv, visit);
    vector(w.kv_norm, config_.head_dim, visit);
    vector(w.attn_sink, config_.heads, visit);
    matrix(w.wo_a, visit);
    matrix(w.wo_b, visit);
    matrix(w.compressor.wkv, visit);
    matrix(w.compressor.wgate, visit);
    vector(w.compressor.norm, config_.head_dim, visit);
    matrix(w.compressor.index_wk, visit);
    vector(w.compressor.index_k_norm, config_.index_head_dim, visit);
    matrix(w.indexer.wq_b, visit);
    matrix(w.indexer.weights_proj, visit);
    if (role.engram_index >= 0) engram(w.engram, visit);
    matrix(w.gate, visit);
    vector(w.gate_bias, config_.routed_experts, visit);
    vector(w.gate_bias_vl, config_.routed_experts, visit);
    for (kernels::ExpertWeights& one : w.experts) expert(one, visit);
    expert(w.shared_expert, visit);
  }

  template <class Visit>
  void engram(EngramWeights& w, const Visit& visit) {
    const int64_t width = config_.engram.head_dim;
    matrix(w.wkv, visit);
    vector(w.q_weight, int64_t{config_.streams} * config_.hidden, visit);
    vector(w.k_weight, int64_t{config_.streams} * config_.hidden, visit);
    if (w.table_rows * width > kPlacedTableBytesMax) return;
    w.on_host = false;
    vector(w.table, w.table_rows * width, visit);
    vector(w.scale, w.table_rows * ((width + 31) / 32), visit);
  }

  const Config& config_;
  ModelWeights& weights_;
};

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Where every tensor goes in one block: a place for each different one, so that layers that share
// a tensor share its copy.
class Places {
 public:
  void add(const void* data, int64_t bytes) {
    if (bytes > 0 && begin_.try_emplace({data, bytes}, total_).second) {
      order_.push_back({data, bytes});
      total_ += aligned(bytes);
    }
  }
  int64_t total() const { return total_; }
  int64_t begin(const void* data, int64_t bytes) const { return begin_.at({data, bytes}); }
  std::vector<UploadPiece> pieces(std::byte* block) const {
    std::vector<UploadPiece> pieces;
    pieces.reserve(order_.size());
    for (const Tensor& tensor : order_) {
      pieces.push_back({tensor.first, block + begin_.at(tensor), tensor.second});
    }
    return pieces;
  }

 private:
  using Tensor = std::pair<const void*, int64_t>;  // data, bytes

  std::map<Tensor, int64_t> begin_;
  std::vector<Tensor> order_;
  int64_t total_ = 0;
};

Places places_of(const Config& config, ModelWeights& weights) {
  Places places;
  TensorWalk(config, weights).run([&places](const void*& data, int64_t bytes) {
    places.add(data, bytes);
  });
  return places;
}

}  // namespace

int64_t placed_bytes(const Model& model, const kernels::Memory& memory) {
  if (memory.is_host()) return 0;
  ModelWeights views = model.weights().views();
  return places_of(model.config(), views).total();
}

Result<PlacedWeights> PlacedWeights::create(const Model& model, kernels::Memory& memory,
                                            const UploadProgress& progress) {
  PlacedWeights placed;
  placed.weights_ = &model.weights();
  if (memory.is_host()) return placed;

  placed.copy_ = std::make_unique<ModelWeights>(model.weights().views());
  placed.weights_ = placed.copy_.get();
  const Places places = places_of(model.config(), *placed.copy_);
  placed.block_ = TRY(kernels::MemoryBlock::create(memory, places.total(), "the weights"));
  TRY(upload(memory, places.pieces(placed.block_.data()), {}, progress));
  TensorWalk(model.config(), *placed.copy_).run([&](const void*& data, int64_t bytes) {
    if (bytes > 0) data = placed.block_.data() + places.begin(data, bytes);
  });
  return placed;
}

}  // namespace galley::model
