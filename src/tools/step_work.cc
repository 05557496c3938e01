#include "tools/step_work.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string>

#include "kernels/tensor.h"
#include "model/inventory.h"

namespace galley::tools {
namespace {

using model::Part;
using model::Storage;

// "layers.12.attn.wq_a.weight" -> 12, -1: of no layer.
int32_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return -1;
  int32_t layer = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

bool contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

// Keys that a row at `position` attends to, entries it scores, and their records.
struct Reach {
  double keys = 0;
  double scored = 0;
  double bytes = 0;        // window and selected records
  double index_bytes = 0;  // of scored entries
};

Reach reach_of(const model::Config& config, const model::LayerRole& role, int64_t position) {
  Reach reach;
  const auto window = static_cast<double>(std::min<int64_t>(config.window, position + 1));
  reach.keys = window;
  reach.bytes = window * static_cast<double>(kernels::window_record_bytes(config.head_dim));
  if (role.ratio == 0) return reach;
  const auto visible = static_cast<double>((position + 1) / role.ratio);
  const double selected = std::min<double>(config.index_top_k, visible);
  reach.keys += selected;
  reach.bytes += selected * static_cast<double>(kernels::global_record_bytes(config.head_dim));
  if (!role.owns_indexer) return reach;
  const double pool = static_cast<double>(config.candidate_blocks) * config.candidate_block_size;
  reach.scored = role.reads_pool ? std::min(pool, visible) : visible;
  reach.index_bytes =
      reach.scored * static_cast<double>(kernels::index_record_bytes(config.index_head_dim));
  return reach;
}

double sum_of(const std::vector<PartWork>& parts, double PartWork::*field) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [field](double sum, const PartWork& part) { return sum + part.*field; });
}

}  // namespace

double Work::bytes() const { return sum_of(parts, &PartWork::bytes); }
double Work::fp8_operations() const { return sum_of(parts, &PartWork::fp8_operations); }
double Work::bf16_operations() const { return sum_of(parts, &PartWork::bf16_operations); }

Floor floor_of(const Work& work, const Peaks& peaks) {
  const auto over = [](double amount, double rate) { return rate > 0 ? amount / rate : 0.0; };
  return {.bytes_s = over(work.bytes(), peaks.bytes_per_s),
          .operations_s = over(work.fp8_operations(), peaks.fp8_operations_per_s) +
                          over(work.bf16_operations(), peaks.bf16_operations_per_s)};
}

StepWork::StepWork(const model::Config& config)
    : config_(config), layers_(static_cast<size_t>(config.layers)) {
  for (const model::ExpectedTensor& tensor : model::expected_tensors(config)) {
    if (tensor.shape.rank < 2 || tensor.part == Part::kEngramTables ||
        tensor.part == Part::kEmbedding || tensor.part == Part::kDspark ||
        tensor.part == Part::kVision) {
      continue;
    }
    const int32_t layer = layer_of(tensor.name);
    Products* products = &head_;
    if (tensor.part == Part::kRoutedExperts) {
      if (!contains(tensor.name, "layers.0.ffn.experts.0.")) continue;
      products = &expert_;
    } else if (layer >= 0) {
      Layer& of = layers_[static_cast<size_t>(layer)];
      const bool keys = contains(tensor.name, ".attn.wkv.") ||
                        contains(tensor.name, ".compressor.") ||
                        contains(tensor.name, ".indexer.wk.");
      const bool attends = tensor.part == Part::kAttention || tensor.part == Part::kIndexer;
      products = keys ? &of.keys : attends ? &of.attend : &of.always;
    }
    const auto elements = static_cast<double>(tensor.shape.elements());
    products->bytes +=
        elements * static_cast<double>(model::dtype_bytes(model::released_dtype(tensor.storage)));
    if (tensor.storage == Storage::kScale) continue;
    // wo_a is stored as fp8 and multiplied as bf16 (spec/model.md 0.2).
    const bool fp8 = tensor.storage == Storage::kPackedFp4 ||
                     (tensor.storage == Storage::kFp8 && !contains(tensor.name, ".attn.wo_a."));
    (fp8 ? products->fp8_values : products->bf16_values) +=
        tensor.storage == Storage::kPackedFp4 ? 2 * elements : elements;
  }
}

double StepWork::distinct_experts(const model::Config& config, double rows) {
  const double share = static_cast<double>(config.experts_per_token) / config.routed_experts;
  return config.routed_experts * (1 - std::pow(1 - share, rows));
}

Work StepWork::of(const WorkRows& rows) const {
  enum : size_t { kAttention, kExperts, kAlways, kCore, kIndexer, kHead };
  Work work;
  for (const char* name :
       {"attention projections", "routed experts",
        "shared expert, router, hyper-connections, Engram", "attention core", "indexer", "head"}) {
    work.parts.push_back({.name = name});
  }
  const auto add = [&work](size_t part, const Products& products, double row_count) {
    if (row_count == 0) return;
    work.parts[part].bytes += products.bytes;
    work.parts[part].fp8_operations += 2 * row_count * products.fp8_values;
    work.parts[part].bf16_operations += 2 * row_count * products.bf16_values;
  };
  const int64_t tail = rows.tail_rows < 0 ? rows.rows : rows.tail_rows;
  const int32_t cut = rows.tail_rows < 0 || config_.decoder_source() < 0 ? config_.layers
                                                                         : config_.decoder_source();
  const int64_t rows_each = rows.rows / rows.sequences;
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    const Layer& of = layers_[static_cast<size_t>(layer)];
    const model::LayerRole& role = config_.roles[static_cast<size_t>(layer)];
    const int64_t here = layer < cut ? rows.rows : tail;
    add(kAttention, of.keys, static_cast<double>(layer <= cut ? rows.rows : tail));
    add(kAttention, of.attend, static_cast<double>(here));
    add(kAlways, of.always, static_cast<double>(here));
    work.parts[kExperts].fp8_operations +=
        2 * static_cast<double>(here) * config_.experts_per_token * expert_.fp8_values;
    if (here == 0) continue;
    // Read once: what the last row of each sequence sees.
    const auto sequences = static_cast<double>(rows.sequences);
    const Reach last = reach_of(config_, role, rows.first_position + rows_each - 1);
    work.parts[kCore].bytes += sequences * last.bytes;
    work.parts[kIndexer].bytes += sequences * last.index_bytes;
    const int64_t here_each = here / rows.sequences;
    for (int64_t row = rows_each - here_each; row < rows_each; ++row) {
      const Reach reach = reach_of(config_, role, rows.first_position + row);
      work.parts[kCore].bf16_operations +=
          sequences * 4.0 * config_.heads * config_.head_dim * reach.keys;
      work.parts[kIndexer].fp8_operations +=
          sequences * 2.0 * config_.index_heads * config_.index_head_dim * reach.scored;
    }
  }
  work.parts[kExperts].bytes = rows.experts_touched * expert_.bytes;
  if (tail > 0) add(kHead, head_, static_cast<double>(rows.logit_rows));
  return work;
}

}  // namespace galley::tools
