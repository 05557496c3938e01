// Every intermediate of a step, sized once for its most rows.
//
// Names follow spec/model.md; widths stand beside them. Nothing here survives
// from one step to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/kv_layout.h"
#include "model/row_buffer.h"
#include "model/step.h"

namespace galley::model {

struct StepWorkspace {
  using Bf16 = kernels::Bf16;

  // The kernels' rows from `device`, what the step fills in itself from `host`; the sources keep
  // a failure.
  StepWorkspace(const Config& config, const KvLayout& layout, const StepOptions& options,
                BufferSource& device, BufferSource& host);

  int64_t bytes() const;

  int64_t rows_max;
  // Streams and carried mix; the second of each receives the tail rows at the cut.
  RowBuffer<Bf16> streams[2];   // n d
  RowBuffer<float> carried[2];  // n
  RowBuffer<float> pre;         // n, of the attention site
  RowBuffer<float> post;        // n
  RowBuffer<float> comb;        // n n
  RowBuffer<Bf16> x;            // d, a site's normed input
  RowBuffer<Bf16> y;            // d, its output

  RowBuffer<Bf16> lambda;   // q_lora_rank
  RowBuffer<Bf16> q;        // h c; attention writes its output over it
  RowBuffer<Bf16> kv;       // c
  RowBuffer<Bf16> u;        // o_groups o_lora_rank
  RowBuffer<uint8_t> keys;  // window records

  RowBuffer<Bf16> entry;        // c, compressor.wkv x at ratio 1
  RowBuffer<float> a;           // c, compressor.wkv x
  RowBuffer<float> b;           // c, compressor.wgate x
  RowBuffer<float> group_a;     // c, members of the groups closed in this step
  RowBuffer<float> group_b;     // c
  RowBuffer<Bf16> latent;       // c
  RowBuffer<Bf16> index_key;    // index_head_dim
  RowBuffer<Bf16> index_query;  // index_heads index_head_dim
  RowBuffer<Bf16> head_weight;  // index_heads

  RowBuffer<int32_t> selected;        // index_top_k
  RowBuffer<int32_t> selected_count;  // 1
  RowBuffer<int32_t> pool;            // candidate_blocks
  RowBuffer<int32_t> pool_count;      // 1

  RowBuffer<int32_t> experts;       // experts_per_token
  RowBuffer<float> expert_weights;  // experts_per_token
  RowBuffer<float> router_margin;   // 1

  std::vector<RowBuffer<int64_t>> engram_ids;  // [Engram layers], columns; host memory
  RowBuffer<Bf16> engram_e;                    // columns head_dim
  RowBuffer<Bf16> engram_kv;                   // (n + 1) d
  RowBuffer<float> engram_gate;                // n

  RowBuffer<Bf16> main_hidden[2];        // targets d, doubled as the streams
  RowBuffer<float> logits;               // V, logit_rows_max rows
  RowBuffer<kernels::DrawnToken> drawn;  // 1, a row of logits

  // Which row of `selected` and `pool` a row reads: another one only after the cut.
  RowBuffer<int32_t> selection_of;
  RowBuffer<int32_t> pool_of;

  // Per-row arguments of kernels, rebuilt for each call; host memory.
  RowBuffer<kernels::SourceRow> sources;
  RowBuffer<const float*> bias_of_row;
  RowBuffer<uint8_t*> global_destination;
  RowBuffer<uint8_t*> index_destination;
  RowBuffer<kernels::AttentionRow> attention_rows;
  RowBuffer<kernels::IndexRow> index_rows;
};

}  // namespace galley::model
