// Lets a verifier see the values inside a step, stage by stage.
//
// Off (a null pointer) in production. Views are valid during the call only; row
// r of a view is rows.positions[r] of sequence rows.sequences[r] (its place in
// the plan). After the cut of decoder replay the rows are the tail rows.
// Records that reach the cache (window rings, compressed entries, index keys,
// pending groups) are read from KvCache after the step.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::model {

struct ObservedRows {
  std::span<const int64_t> positions;
  std::span<const int32_t> sequences;
};

class StepObserver {
 public:
  using Bf16Rows = kernels::Rows<const kernels::Bf16>;
  using F32Rows = kernels::Rows<const float>;

  virtual ~StepObserver() = default;

  // Streams [R, n d] entering layer 0: n equal copies of the embedding row.
  virtual void embed_in(const ObservedRows&, Bf16Rows /*streams*/) {}

  // Streams and carried mix [R, n] entering a layer.
  virtual void layer_in(int32_t /*layer*/, const ObservedRows&, Bf16Rows /*streams*/,
                        F32Rows /*pre_in*/) {}
  // Table rows [R, columns] (offsets included), gate [R, n], streams after the write.
  virtual void engram(int32_t /*layer*/, const ObservedRows&, kernels::Rows<const int64_t> /*ids*/,
                      F32Rows /*gate*/, Bf16Rows /*streams*/) {}

  virtual void attn_in(int32_t /*layer*/, const ObservedRows&, Bf16Rows /*x*/) {}
  virtual void attn_out(int32_t /*layer*/, const ObservedRows&, Bf16Rows /*y*/) {}
  virtual void ffn_in(int32_t /*layer*/, const ObservedRows&, Bf16Rows /*x*/) {}
  virtual void ffn_out(int32_t /*layer*/, const ObservedRows&, Bf16Rows /*y*/) {}

  // Window records [R, window_record_bytes], as attention reads them.
  virtual void window_keys(int32_t /*layer*/, const ObservedRows&,
                           kernels::Rows<const uint8_t> /*records*/) {}

  // One index source's scores and choice: rows[r].scores[0, visible) before the
  // pool mask, rows[r].selected[0, *selected_count), rows[r].built_pool (block
  // numbers) at the candidate source.
  virtual void index(int32_t /*layer*/, const ObservedRows&,
                     std::span<const kernels::IndexRow> /*rows*/) {}

  virtual void router(int32_t /*layer*/, const ObservedRows&,
                      kernels::Rows<const int32_t> /*experts*/, F32Rows /*weights*/,
                      std::span<const float> /*margin*/) {}

  // Streams and carried mix leaving a layer.
  virtual void layer_out(int32_t /*layer*/, const ObservedRows&, Bf16Rows /*streams*/,
                         F32Rows /*pre_out*/) {}

  // bf16 mean of the streams entering draft target number `target`, after Engram.
  virtual void main_hidden(int32_t /*target*/, const ObservedRows&, Bf16Rows /*mean*/) {}
};

}  // namespace galley::model
