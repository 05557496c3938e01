// Hyper-connections (spec/model.md 3): a site's coefficients, collapse with its norm, expand.
//
// For four residual streams, as every release of the family has them. Pointers and rows are device
// memory.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/input_tiles.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int32_t kStreams = 4;

// The experts' results of each row, still to be added up: rows row * top_k + choice, or what
// `place` has there (below 0: none), and the shared expert's.
struct ExpertParts {
  Rows<const Bf16> rows = {};
  int32_t top_k = 0;
  const int32_t* place = nullptr;
  Rows<const Bf16> shared = {};
};

// A site that is left first: streams <- expand(y, streams, post, comb). No y: none is.
struct HcLeave {
  ExpertParts parts = {};  // with rows: y is their sum, and is written too
  Rows<Bf16> y = {};
  Rows<const float> post = {};
  Rows<const float> comb = {};
  Rows<Bf16> streams = {};
};

// Working memory of hc_enter for so many rows.
int64_t hc_enter_workspace_bytes(int64_t rows, int64_t hidden);

// One pass over the streams that leaves one site and enters the next, and a second launch or two.
// `mix` may be where `carried`, `leave.post` and `leave.comb` are. norm_weight [hidden], x [R,
// hidden]. `tiles`, with codes: x in Q8 too, hidden a multiple of 128.
void hc_enter(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
              const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
              const Bf16* norm_weight, HcMix mix, Rows<Bf16> x, const InputTiles& tiles,
              void* workspace);

void collapse_norm(Stream stream, Rows<const Bf16> streams, Rows<const float> carried,
                   const Bf16* norm_weight, float eps, Rows<Bf16> x);

void hc_leave(Stream stream, const HcLeave& leave);

void stream_mean(Stream stream, Rows<const Bf16> streams, Rows<Bf16> mean);

// streams row r = four copies of sources[r], a device array of device pointers. Copies, a device
// array too, touch none of these rows.
void spread(Stream stream, const SourceRow* sources, Rows<Bf16> streams, const RowCopy* copies,
            int64_t copy_count);

}  // namespace galley::kernels::cuda
