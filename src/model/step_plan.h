// What one step is to compute, as a plain value: the rows of each sequence and
// where their state lives.
//
// The plan borrows its spans; they must live until Step::run returns. It names
// everything a row's result depends on besides the cache, so nothing is
// inferred from counters (spec/model.md 4.8, 6.4, 8.2, 8.3).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/drawn_token.h"
#include "kernels/tensor.h"

namespace galley::model {

// For statistics and tests: every kind computes a row the same way. The rows
// of a verify plan are rolled back by simply planning the next rows at an
// earlier position; KvOptions::verify_rows_max bounds how far.
enum class RowKind : uint8_t { kPrefill, kDecode, kVerify, kReplay };

// Where decoder replay cuts, spec/model.md 8.3. E = Config::decoder_source(),
// the last KV source. A property of the Step; a plan whose tail_begin is 0 is
// not cut and gets the same bits as under kOff. A model without compressed KV is
// never cut.
enum class DecoderReplay : uint8_t {
  kOff,              // every row runs every layer
  kLayerWhole,       // (a) layers 0..E on all rows
  kWindowAndGlobal,  // (b) layer E's window and global KV on all rows; the default for serving
  kGlobalOnly,       // (c) layer E's global KV only on all rows
};

// A position that no row reaches.
inline constexpr int64_t kNoPosition = std::numeric_limits<int64_t>::max();

struct SequencePlan {
  int32_t slot = 0;
  RowKind kind = RowKind::kPrefill;
  int64_t first_position = 0;
  std::span<const int32_t> tokens = {};  // one row each, positions first_position, +1, ...

  // >= 0: the only row's token is what row `token_row` of StepResult::drawn of the step before this
  // one will be; `tokens` holds any id. Only for a step that overlaps that one (Step::overlaps).
  int32_t token_row = -1;

  // The ids before `tokens`, oldest first, for Engram's look-back: the last
  // min(first_position, ngram_size_max - 1) or more of them.
  std::span<const int32_t> look_back = {};

  // Ids of the pages that hold positions [0, first_position + tokens.size()).
  std::span<const int32_t> page_table = {};

  // Logits are computed for the rows [logits_begin, tokens.size()); these must be tail rows.
  int64_t logits_begin = kNoPosition;
  // If set, and the kernels draw (Ops::draws), each of these rows becomes a token there, and its
  // logits stay there. Of the first row; the position counts on from there.
  const kernels::DrawRequest* draw = nullptr;

  // Bounded prefix replay (8.2): no row sees window keys before window_floor,
  // and rows before global_begin write window KV only.
  int64_t window_floor = 0;
  int64_t global_begin = 0;

  // Decoder replay (8.3): positions >= tail_begin run the layers after the cut,
  // where no row sees window keys before tail_floor.
  int64_t tail_begin = 0;
  int64_t tail_floor = 0;
  // Keep the inputs of the cut layer of these rows in the slot (its last W), and
  // take those of the `held_rows` positions before first_position from there:
  // they run the layers after the cut in this step, as tail rows.
  bool hold_inputs = false;
  int32_t held_rows = 0;

  // Image spans. All empty, or one entry a row: a row whose embedding is set
  // starts from that row of d values instead of its token's; a row with
  // in_image[r] != 0 is dead to Engram and routed with bias_vl.
  // look_back_in_image runs along with look_back.
  std::span<const kernels::Bf16* const> embeddings = {};
  std::span<const uint8_t> in_image = {};
  std::span<const uint8_t> look_back_in_image = {};

  int64_t end_position() const { return first_position + static_cast<int64_t>(tokens.size()); }
};

// sD of spec/model.md 8.3: the first position of a prompt [replay_start, prompt_end)
// that runs the layers after the cut. With it as tail_begin and tail_floor of
// every chunk of the prompt, chunking does not change a result: each chunk runs
// its own part of the last W rows.
inline int64_t decoder_floor(DecoderReplay replay, int64_t window, int64_t replay_start,
                             int64_t prompt_end) {
  if (replay == DecoderReplay::kOff) return 0;
  return std::max(replay_start, prompt_end - window);
}

// Where the rows of a sequence must start after a prefix hit, so that every row that counts has
// the bits of a cold run: the rows before `hit` refill the windows, one more window for each
// layer that stands between them and a row whose result is kept.
struct ExactReplay {
  DecoderReplay replay = DecoderReplay::kOff;
  int64_t window = 0;
  int32_t layers = 0;
  int32_t decoder_source = 0;  // Config::decoder_source()
};

// 0: everything would be computed again. Global KV from `hit` on must be exact, so layer E's
// inputs are from there; so must the windows of the last prompt rows be, which run to the end.
inline int64_t exact_replay_start(const ExactReplay& model, int64_t hit, int64_t prompt_end) {
  const int64_t reach = model.window - 1;  // of one layer
  const int64_t before_cut = model.decoder_source;
  int64_t start = hit - before_cut * reach;
  switch (model.replay) {
    case DecoderReplay::kOff:
      start = std::min(start, prompt_end - 1 - model.layers * reach);
      break;
    case DecoderReplay::kLayerWhole:
    case DecoderReplay::kWindowAndGlobal:
      start = std::min(start, prompt_end - model.window - (before_cut + 1) * reach);
      break;
    case DecoderReplay::kGlobalOnly:
      start = std::min(start, prompt_end - model.window - before_cut * reach);
      break;
  }
  return std::max<int64_t>(0, start);
}

// After a replay from `start`, from where on what a later prompt may read has the bits of a cold
// run: under kOff the windows of every layer, otherwise the inputs and keys of layer E.
inline int64_t exact_replay_reach(const ExactReplay& model, int64_t start) {
  const int64_t stacked = model.replay == DecoderReplay::kOff ? model.layers : model.decoder_source;
  return start + stacked * (model.window - 1);
}

}  // namespace galley::model
