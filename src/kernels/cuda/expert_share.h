// The launches behind expert_sharing.h: one rank's part of a layer of folded experts, and what goes
// to other ranks' memory and is waited for.
#pragma once

#include <cstdint>
#include <numeric>

#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/input_tiles.h"
#include "kernels/cuda/side_stream.h"
#include "kernels/expert_sharing.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int32_t kShareRanksMax = 8;  // cards of one host

// Rows on their way: Q8 tiles of all rows in order (quantise_rows), choices, weights.
struct ShareInput {
  uint8_t* codes = nullptr;  // [chunks][places][128], places: rows up to a multiple of 8
  float* scale = nullptr;    // [chunks][places]
  int32_t* experts = nullptr;
  float* weights = nullptr;
  int64_t places = 0;
};
ShareInput share_input(const ExpertShape& shape, const std::byte* memory, int64_t rows);
int64_t share_input_bytes(const ExpertShape& shape, int64_t rows);

// Results: where each choice's lies, then the results, experts ascending.
struct ShareParts {
  int32_t* place = nullptr;      // [rows, top_k], -1: another rank's
  PlanTotals* totals = nullptr;  // of the plan that placed them
  Bf16* rows = nullptr;          // [places, hidden]
  int64_t places = 0;
};
ShareParts share_parts(const ExpertShape& shape, const std::byte* memory, int64_t rows);
int64_t share_parts_bytes(const ExpertShape& shape, int64_t rows);

// Rows of every rank, as they came. The codes of this rank's own may lie where the site left them,
// not in its input.
struct RankInputs {
  const std::byte* of[kShareRanksMax] = {};
  int64_t rows[kShareRanksMax] = {};
  int32_t count = 0;
  int32_t self = 0;
  InputTiles own;

  // Rows of the ranks before this one; of all.
  int64_t before(int32_t rank) const { return std::accumulate(rows, rows + rank, int64_t{0}); }
  int64_t all() const { return before(count); }
};

// Working memory for rows of all ranks; what the shared expert computed stays in it, and the inner
// values of all rows.
int64_t share_workspace_bytes(const ExpertShape& shape, int32_t ranks, int64_t rows_max);

// `own`: x in Q8, if it was made along with x; it stays until the inner values are computed. Then
// `input` has no codes.
// `shape` is that of this rank's experts. `ranks` and `rows_max`, which is of a rank, size the
// workspace.
void share_pack(Stream stream, const ExpertShape& shape, Rows<const Bf16> x, const InputTiles& own,
                const int32_t* experts, const float* weights, std::byte* input);
void share_shared(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles, int32_t ranks,
                  const std::byte* input, const InputTiles& own, int64_t rows, int64_t rows_max,
                  uint8_t* workspace);
// The inner values of all rows whose choices are experts first..; then the results of rank r's.
void share_inner(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles, int32_t first,
                 const RankInputs& inputs, int64_t rows_max, uint8_t* workspace);
void share_results(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles,
                   const RankInputs& inputs, int32_t r, int64_t rows_max, uint8_t* workspace,
                   std::byte* parts);

struct RankParts {
  const std::byte* of[kShareRanksMax] = {};
};
// y[r] = bf16(sum of the choices' results in their order, then the shared expert's).
void share_combine(Stream stream, const ExpertShape& shape, int32_t ranks, const int32_t* experts,
                   RankParts parts, int64_t rows_max, uint8_t* workspace, Rows<Bf16> y);

// Behind all of `stream`, beside what comes after it.
void share_send_input(Stream stream, const SideStream* lane, const ExpertShape& shape,
                      const std::byte* input, const InputTiles& own, int64_t rows, std::byte* to);
void share_send_parts(Stream stream, const SideStream* lane, const ExpertShape& shape,
                      int32_t ranks, const std::byte* parts, int64_t rows, std::byte* to);
void share_raise(Stream stream, const SideStream* lane, RankFlag* own, RankFlag* other);
void share_await(Stream stream, const SideStream* lane, RankFlag* own);

}  // namespace galley::kernels::cuda
