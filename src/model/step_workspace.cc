#include "model/step_workspace.h"

#include <algorithm>

namespace galley::model {

StepWorkspace::StepWorkspace(const Config& config, const KvLayout& layout,
                             const StepOptions& options, BufferSource& device, BufferSource& host)
    : rows_max(int64_t{options.rows_max} + options.held_rows_max) {
  const int64_t r = rows_max;
  const int64_t n = config.streams;
  const int64_t d = config.hidden;
  const int64_t c = config.head_dim;
  for (auto& buffer : streams) buffer = {device, r, n * d};
  for (auto& buffer : carried) buffer = {device, r, n};
  pre = {device, r, n};
  post = {device, r, n};
  comb = {device, r, n * n};
  x = {device, r, d};
  y = {device, r, d};

  lambda = {device, r, config.q_lora_rank};
  q = {device, r, config.heads * c};
  kv = {device, r, c};
  u = {device, r, int64_t{config.o_groups} * config.o_lora_rank};
  keys = {device, r, layout.window_record_bytes};

  int32_t ratio_max = 1;
  for (const KvSourceLayout& source : layout.sources) {
    ratio_max = std::max(ratio_max, source.ratio);
  }
  // Each sequence may close one group that earlier steps began.
  const int64_t members = r + int64_t{options.sequences_max} * (ratio_max - 1);
  entry = {device, r, c};
  a = {device, r, c};
  b = {device, r, c};
  group_a = {device, members, c};
  group_b = {device, members, c};
  latent = {device, r, c};
  index_key = {device, r, config.index_head_dim};
  index_query = {device, r, int64_t{config.index_heads} * config.index_head_dim};
  head_weight = {device, r, config.index_heads};
  selected = {device, r, config.index_top_k};
  selected_count = {device, r, 1};
  pool = {device, r, config.candidate_blocks};
  pool_count = {device, r, 1};

  experts = {device, r, config.experts_per_token};
  expert_weights = {device, r, config.experts_per_token};
  router_margin = {device, r, 1};

  const EngramConfig& engram = config.engram;
  if (!engram.layer_ids.empty()) {
    for (size_t i = 0; i < engram.layer_ids.size(); ++i) {
      engram_ids.emplace_back(host, r, engram.columns());
    }
    engram_e = {device, r, engram.width()};
    engram_kv = {device, r, (n + 1) * d};
    engram_gate = {device, r, n};
  }
  if (options.capture_targets) {
    for (auto& buffer : main_hidden) {
      buffer = {device, r, static_cast<int64_t>(config.dspark.target_layer_ids.size()) * d};
    }
  }
  logits = {device, options.logit_rows_max, config.vocab_size};
  drawn = {device, options.logit_rows_max, 1};

  selection_of = {host, r, 1};
  pool_of = {host, r, 1};
  sources = {host, r, 1};
  bias_of_row = {host, r, 1};
  global_destination = {host, r, 1};
  index_destination = {host, r, 1};
  attention_rows = {host, r, 1};
  index_rows = {host, r, 1};
}

int64_t StepWorkspace::bytes() const {
  int64_t sum = 0;
  const auto add = [&sum](const auto&... buffers) { ((sum += buffers.bytes()), ...); };
  add(streams[0], streams[1], carried[0], carried[1], pre, post, comb, x, y);
  add(lambda, q, kv, u, keys, entry, a, b, group_a, group_b, latent, index_key, index_query);
  add(head_weight, selected, selected_count, pool, pool_count, experts, expert_weights);
  add(router_margin, engram_e, engram_kv, engram_gate, main_hidden[0], main_hidden[1], logits,
      drawn);
  add(selection_of, pool_of, sources, bias_of_row);
  add(global_destination, index_destination, attention_rows, index_rows);
  for (const auto& ids : engram_ids) add(ids);
  return sum;
}

}  // namespace galley::model
