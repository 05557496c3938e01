#include "model/step_workspace.h"

#include <algorithm>

namespace galley::model {

StepWorkspace::StepWorkspace(const Config& config, const KvLayout& layout,
                             const StepOptions& options)
    : rows_max(int64_t{options.rows_max} + options.held_rows_max) {
  const int64_t r = rows_max;
  const int64_t n = config.streams;
  const int64_t d = config.hidden;
  const int64_t c = config.head_dim;
  for (auto& buffer : streams) buffer = {r, n * d};
  for (auto& buffer : carried) buffer = {r, n};
  pre = {r, n};
  post = {r, n};
  comb = {r, n * n};
  x = {r, d};
  y = {r, d};

  lambda = {r, config.q_lora_rank};
  q = {r, config.heads * c};
  kv = {r, c};
  u = {r, int64_t{config.o_groups} * config.o_lora_rank};
  keys = {r, layout.window_record_bytes};

  int32_t ratio_max = 1;
  for (const KvSourceLayout& source : layout.sources) {
    ratio_max = std::max(ratio_max, source.ratio);
  }
  // Each sequence may close one group that earlier steps began.
  const int64_t members = r + int64_t{options.sequences_max} * (ratio_max - 1);
  entry = {r, c};
  a = {r, c};
  b = {r, c};
  group_a = {members, c};
  group_b = {members, c};
  latent = {r, c};
  index_key = {r, config.index_head_dim};
  index_query = {r, int64_t{config.index_heads} * config.index_head_dim};
  head_weight = {r, config.index_heads};
  selected = {r, config.index_top_k};
  selected_count = {r, 1};
  pool = {r, config.candidate_blocks};
  pool_count = {r, 1};

  experts = {r, config.experts_per_token};
  expert_weights = {r, config.experts_per_token};
  router_margin = {r, 1};

  const EngramConfig& engram = config.engram;
  if (!engram.layer_ids.empty()) {
    for (size_t i = 0; i < engram.layer_ids.size(); ++i) {
      engram_ids.emplace_back(r, engram.columns());
    }
    engram_e = {r, engram.width()};
    engram_kv = {r, (n + 1) * d};
    engram_gate = {r, n};
  }
  if (options.capture_targets) {
    main_hidden = {r, static_cast<int64_t>(config.dspark.target_layer_ids.size()) * d};
  }
  logits = {options.logit_rows_max, config.vocab_size};

  sources = {r, 1};
  bias_of_row = {r, 1};
  global_destination = {r, 1};
  index_destination = {r, 1};
  attention_rows = {r, 1};
  index_rows = {r, 1};
}

int64_t StepWorkspace::bytes() const {
  int64_t sum = 0;
  const auto add = [&sum](const auto&... buffers) { ((sum += buffers.bytes()), ...); };
  add(streams[0], streams[1], carried[0], carried[1], pre, post, comb, x, y);
  add(lambda, q, kv, u, keys, entry, a, b, group_a, group_b, latent, index_key, index_query);
  add(head_weight, selected, selected_count, pool, pool_count, experts, expert_weights);
  add(router_margin, engram_e, engram_kv, engram_gate, main_hidden, logits, sources, bias_of_row);
  add(global_destination, index_destination, attention_rows, index_rows);
  for (const auto& ids : engram_ids) add(ids);
  return sum;
}

}  // namespace galley::model
