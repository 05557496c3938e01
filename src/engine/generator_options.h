// What an engine is sized for and how it schedules: plain numbers, taken once.
#pragma once

#include <cstdint>
#include <string>

#include "model/step_plan.h"
#include "model/weight_upload.h"

namespace galley::engine {

// What happens after a prefix hit, whose windows are not cached (spec/model.md 8.2).
enum class PrefixReplay : uint8_t {
  kOff,      // no prefix is reused
  kBounded,  // the last window is recomputed: cheap, and the tokens depend on where the hit ended
  kExact,    // as much is recomputed as makes every bit that of a cold run
};

struct GeneratorOptions {
  int32_t sequences_max = 32;  // running together: one slot each
  int32_t rows_max = 512;      // of one step; at least sequences_max
  int32_t waiting_max = 1024;  // accepted but not running
  int32_t page_tokens = 128;
  int32_t page_count = 0;
  int32_t vocab_size = 0;
  int64_t positions_max = 0;  // longest sequence
  int64_t window = 0;         // W
  int32_t look_back = 3;      // tokens before a chunk that the model wants to see
  int32_t layers = 0;
  int32_t decoder_source = 0;  // Config::decoder_source(); none: no prefix is reused
  model::DecoderReplay replay = model::DecoderReplay::kWindowAndGlobal;

  // A step is planned and handed over while the one before it is computed. Changes no token; a
  // token is told one step later, and rows planned for a sequence that just ended are wasted.
  bool async_scheduling = false;

  // Prompt rows of a step in which others decode, by what they cost (row_cost.h); 0 = all that
  // rows_max leaves.
  int32_t prefill_rows_beside_decode = 0;
  // A sequence starts when its prompt and this much of its output have pages; more is taken as
  // it grows, from those ranked behind it if need be.
  int32_t growth_tokens = 256;
  int32_t look_ahead = 32;  // waiting sequences tried past one that does not fit
  // Later arrivals that may start before one that does not fit; then it is waited for.
  int32_t passes_max = 64;
  // Later arrivals started before one that waits, after which it ranks a priority higher.
  int32_t passes_per_promotion = 256;

  PrefixReplay prefix = PrefixReplay::kOff;
  // Host memory for the state of sequences, in blocks of a page's size; 0: none, who is preempted
  // is computed again. size_snapshots() sets these.
  int32_t snapshot_blocks = 0;
  int64_t block_bytes = 0;
  int32_t slot_blocks = 0;   // of a preempted sequence's slot, to which its pages come
  int32_t reuse_blocks = 0;  // of a snapshot that later turns start from; 0: none are taken

  int64_t prefix_ttl_s = 0;  // a prefix that nobody used for so long is forgotten; 0: never
  // What else tells cached prefixes apart besides tokens and namespace: model build, layout.
  std::string prefix_salt;

  // Told while weights are copied to a device; may stop it.
  model::UploadProgress on_upload = {};
};

}  // namespace galley::engine
