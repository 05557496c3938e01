// Where everything lies inside a page and inside a slot (spec/model.md 8.1),
// derived from the config alone. Pure arithmetic: no memory here.
//
// A page holds all global KV of `page_tokens` consecutive tokens: for each KV
// source its compressed records, then its index records. A slot holds the
// fixed-size state of one running sequence: for each layer a ring of window
// records, for each KV source of ratio > 1 a ring of the last members of the
// pending group, and optionally the last W inputs of the cut layer. Rings are
// addressed by absolute position modulo their length, and are longer than what
// is read by the most rows a verify step may take back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace galley::model {

struct KvOptions {
  int32_t page_tokens = 128;    // a multiple of every ratio
  int32_t verify_rows_max = 8;  // rows of one sequence that a later plan may take back
  bool hold_inputs = false;     // room for SequencePlan::hold_inputs
  // Rings of the first so many layers, and the held inputs, belong to reuse snapshots
  // (kv_snapshot.h): they reach back a page further, so that a snapshot of a page boundary can
  // be taken up to page_tokens - 1 positions later. 0: no such snapshots.
  int32_t reuse_layers = 0;
};

struct KvSourceLayout {
  int32_t layer = 0;
  int32_t ratio = 1;
  int32_t records_per_page = 0;
  int64_t global_offset = 0;  // in a page
  int64_t index_offset = 0;
  int64_t pending_offset = 0;  // in a slot: pending_slots times (a, b), f32 [2, head_dim]
  int32_t pending_slots = 0;   // 0 at ratio 1
};

struct RingLayout {
  int64_t offset = 0;  // in a slot
  int32_t slots = 0;   // records
  int32_t reuse = 0;   // of them, those before a page boundary that a reuse snapshot has
};

struct KvLayout {
  static Result<KvLayout> create(const Config& config, const KvOptions& options);

  int32_t page_tokens = 0;
  int32_t window_record_bytes = 0;
  int32_t global_record_bytes = 0;
  int32_t index_record_bytes = 0;
  int64_t pending_row_bytes = 0;  // (a, b) of one position
  int64_t page_bytes = 0;         // 113,920 at the released config and 128 tokens
  int64_t page_stride = 0;        // page_bytes up to a whole cache line
  int64_t slot_bytes = 0;
  std::vector<KvSourceLayout> sources;  // in layer order
  std::vector<RingLayout> rings;        // [layers]
  // The last W inputs (S bf16 [n d], then pi f32 [n]) of the cut layer; slots = 0 without.
  RingLayout held;
  int64_t held_stream_bytes = 0;  // where pi begins in a held row
  int64_t held_row_bytes = 0;

  int64_t pages_for(int64_t positions) const { return (positions + page_tokens - 1) / page_tokens; }
};

}  // namespace galley::model
