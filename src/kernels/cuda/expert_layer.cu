#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/carver.h"
#include "kernels/cuda/expert_arguments.h"
#include "kernels/cuda/expert_few_rows.h"
#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/hc_site.h"
#include "kernels/cuda/launch.h"

namespace galley::kernels::cuda {
namespace {

ExpertTiles carve_tiles(const ExpertShape& shape, Carver& carver) {
  const FoldShape up = shape.gate_up();
  const FoldShape down = shape.down();
  ExpertTiles tiles;
  tiles.gate_up = carver.take<uint8_t>(shape.experts * folded_fp4_bytes(up));
  tiles.down = carver.take<uint8_t>(shape.experts * folded_fp4_bytes(down));
  tiles.gate_up_scale = carver.take<float>(shape.experts * up.slots());
  tiles.down_scale = carver.take<float>(shape.experts * down.slots());
  tiles.shared_gate_up = carver.take<uint8_t>(folded_fp8_bytes(up));
  tiles.shared_down = carver.take<uint8_t>(folded_fp8_bytes(down));
  return tiles;
}

// Rows on their way through the layer. `places` rows of the experts, `rows` (rounded up to 8) of
// the shared one.
struct Workspace {
  ExpertPlan plan;
  int64_t places = 0;
  int64_t shared_places = 0;
  QuantisedRows x;
  Bf16* inner = nullptr;
  QuantisedRows inner8;
  Bf16* out = nullptr;
  QuantisedRows shared_x;
  Bf16* shared_inner = nullptr;
  QuantisedRows shared_inner8;
  Bf16* shared_out = nullptr;
};

Workspace carve_workspace(const ExpertShape& shape, int64_t rows, Carver& carver) {
  const int64_t choices = rows * shape.top_k;
  const int64_t chunks = shape.gate_up().chunks();
  const int64_t inner_chunks = shape.down().chunks();
  Workspace work;
  work.places = plan_places(choices, shape.experts);
  work.shared_places = (rows + 7) / 8 * 8;
  work.plan.place = carver.take<int32_t>(choices);
  work.plan.row_weight = carver.take<float>(work.places + 256);
  work.plan.blocks = carver.take<TokenBlock>(plan_blocks(choices, shape.experts, 8));
  work.plan.totals = carver.take<PlanTotals>(1);
  work.x = carve_rows(work.places, chunks, carver);
  work.inner = carver.take<Bf16>(work.places * shape.inner);
  work.inner8 = carve_rows(work.places, inner_chunks, carver);
  work.out = carver.take<Bf16>(work.places * shape.hidden);
  work.shared_x = carve_rows(work.shared_places, chunks, carver);
  work.shared_inner = carver.take<Bf16>(rows * shape.inner);
  work.shared_inner8 = carve_rows(work.shared_places, inner_chunks, carver);
  work.shared_out = carver.take<Bf16>(rows * shape.hidden);
  return work;
}

// Few rows need no plan: choice c has place c.
bool takes_few(const ExpertShape& shape, int64_t rows) {
  return takes_expert_rows(shape.gate_up(), rows, shape.top_k) &&
         takes_expert_rows(shape.down(), rows, shape.top_k);
}

ExpertRowsArguments few_arguments(const ExpertShape& shape, const FoldShape& matrix,
                                  const uint8_t* weights, const float* row_scale, int64_t rows,
                                  const int32_t* experts) {
  ExpertRowsArguments args{};
  args.weights = weights;
  args.expert_bytes = folded_fp4_bytes(matrix);
  args.row_scale = row_scale;
  args.rows = static_cast<int32_t>(rows);
  args.chunks = static_cast<int32_t>(matrix.chunks());
  args.slots = static_cast<int32_t>(matrix.slots());
  args.outputs = static_cast<int32_t>(matrix.rows);
  args.y_stride = matrix.rows;
  args.chosen = experts;
  args.top_k = shape.top_k;
  return args;
}

void few_up(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles, int64_t rows,
            const int32_t* experts, const float* weights, const Workspace& work) {
  ExpertRowsArguments args =
      few_arguments(shape, shape.gate_up(), tiles.gate_up, tiles.gate_up_scale, rows, experts);
  args.x = work.shared_x.x8;
  args.x_scale = work.shared_x.scale;
  args.x_rows = work.shared_x.places;
  args.row_weight = weights;
  args.limit = shape.swiglu_limit;
  args.y = work.inner;
  expert_rows_product(stream, ResultForm::kSwiGlu, args);
}

void few_down(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles, int64_t rows,
              const int32_t* experts, const Workspace& work) {
  ExpertRowsArguments args =
      few_arguments(shape, shape.down(), tiles.down, tiles.down_scale, rows, experts);
  args.values = work.inner;
  args.columns = shape.inner;
  args.y = work.out;
  expert_rows_product(stream, ResultForm::kBf16, args);
}

}  // namespace

int64_t expert_tiles_bytes(const ExpertShape& shape) {
  Carver carver(nullptr);
  carve_tiles(shape, carver);
  return carver.used();
}

ExpertTiles place_expert_tiles(const ExpertShape& shape, uint8_t* memory) {
  Carver carver(memory);
  return carve_tiles(shape, carver);
}

void fold_expert_tiles(Stream stream, const ExpertShape& shape, const RawWeight& w1,
                       const RawWeight& w3, const RawWeight& w2, int32_t expert,
                       const ExpertTiles& tiles, int32_t* misfits) {
  const FoldShape up = shape.gate_up();
  const FoldShape down = shape.down();
  fold_fp4(stream, w1, w3, up, tiles.gate_up + expert * folded_fp4_bytes(up),
           tiles.gate_up_scale + expert * up.slots(), misfits);
  fold_fp4(stream, w2, {}, down, tiles.down + expert * folded_fp4_bytes(down),
           tiles.down_scale + expert * down.slots(), misfits);
}

void fold_shared_expert(Stream stream, const ExpertShape& shape, const RawWeight& w1,
                        const RawWeight& w3, const RawWeight& w2, const ExpertTiles& tiles,
                        const FoldCounters& counters) {
  fold_fp8(stream, w1, w3, shape.gate_up(), tiles.shared_gate_up, counters);
  fold_fp8(stream, w2, {}, shape.down(), tiles.shared_down, counters);
}

int64_t expert_workspace_bytes(const ExpertShape& shape, int64_t rows) {
  Carver carver(nullptr);
  carve_workspace(shape, rows, carver);
  return carver.used();
}

bool routes_along(const RoutePlan& routed, const ExpertShape& shape, Rows<const Bf16> x) {
  if (routed.x.data != x.data || routed.x.rows != x.rows) return false;
  return takes_few(shape, x.rows) ||
         route_plan_takes(shape.experts, shape.gate_up().chunks(),
                          expert_block_tokens(x.rows * shape.top_k, shape.experts));
}

void run_experts(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles,
                 Rows<const Bf16> x, const InputTiles& x_tiles, const SideStream* side,
                 const LateMixes& mixes, const int32_t* experts, const float* weights,
                 const RoutePlan& routed, uint8_t* workspace) {
  if (x.rows == 0) return;
  Carver carver(workspace);
  Workspace work = carve_workspace(shape, x.rows, carver);
  const int64_t choices = x.rows * shape.top_k;
  const int32_t tokens = expert_block_tokens(choices, shape.experts);
  const bool few = takes_few(shape, x.rows);
  const Rows<const Bf16> inner(work.inner, work.places, shape.inner);
  const Rows<const Bf16> shared_inner(work.shared_inner, x.rows, shape.inner);
  const auto shared_up = [&](Stream where) {
    dense_product(where, ResultForm::kSwiGlu,
                  shared_up_arguments(shape, tiles, work.shared_x, x.rows, work.shared_inner));
  };
  const auto shared_down = [&](Stream where) {
    dense_product(where, ResultForm::kBf16,
                  shared_down_arguments(shape, tiles, work.shared_inner8, x.rows, work.shared_out));
  };

  if (x_tiles.codes != nullptr) {
    work.shared_x = {x_tiles.codes, x_tiles.scale, x_tiles.places};
    if (side != nullptr) {
      enter_side(*side);
      if (mixes.streams.data != nullptr) hc_site_mixes(side->stream, mixes);
      shared_up(side->stream);
      quantise_rows(side->stream, shared_inner, work.shared_places, work.shared_inner8.x8,
                    work.shared_inner8.scale);
      shared_down(side->stream);
    }
    const auto chunks = static_cast<int32_t>(shape.gate_up().chunks());
    if (routed.x.rows > 0) {
      RoutePlan all = routed;
      if (!few) {
        all.plan_experts = experts;
        all.plan_weights = weights;
        all.plan_expert_count = shape.experts;
        all.block_tokens = tokens;
        all.plan = work.plan;
        all.from = work.shared_x;
        all.to = work.x;
        all.chunks = chunks;
      }
      route_and_plan(stream, all);
    } else if (!few) {
      plan_and_spread(stream, experts, weights, x.rows, shape.top_k, shape.experts, tokens,
                      work.plan, work.shared_x, work.x, chunks);
    }
  } else if (few) {
    CHECK(side == nullptr);
    quantise_rows(stream, x, work.shared_x.places, work.shared_x.x8, work.shared_x.scale);
  } else {
    CHECK(side == nullptr);
    plan_experts(stream, experts, weights, choices, shape.experts, tokens, work.plan);
    quantise_choices(stream, x, work.plan.place, shape.top_k, work.x, work.shared_x);
  }
  if (few) {
    few_up(stream, shape, tiles, x.rows, experts, weights, work);
    if (side == nullptr) {
      shared_up(stream);
      quantise_rows(stream, shared_inner, work.shared_places, work.shared_inner8.x8,
                    work.shared_inner8.scale);
    }
    few_down(stream, shape, tiles, x.rows, experts, work);
  } else {
    expert_product(stream, ResultForm::kSwiGlu, tokens,
                   expert_up_arguments(shape, tiles, work.plan, work.x, work.inner));
    if (side == nullptr) {
      shared_up(stream);
      quantise_places(stream, inner, work.plan.place, choices, work.inner8, shared_inner,
                      work.shared_inner8);
    } else {
      quantise_places(stream, inner, work.plan.place, choices, work.inner8, {}, {});
    }
    expert_product(stream, ResultForm::kBf16, tokens,
                   expert_down_arguments(shape, tiles, work.plan, work.inner8, work.out));
  }
  if (side == nullptr) {
    shared_down(stream);
  } else {
    join_side(stream, *side);
  }
}

ExpertParts expert_parts(const ExpertShape& shape, int64_t rows, uint8_t* workspace) {
  Carver carver(workspace);
  const Workspace work = carve_workspace(shape, rows, carver);
  return {.rows = Rows<const Bf16>(work.out, work.places, shape.hidden),
          .top_k = shape.top_k,
          .place = takes_few(shape, rows) ? nullptr : work.plan.place,
          .shared = Rows<const Bf16>(work.shared_out, rows, shape.hidden)};
}

void sum_experts(Stream stream, const ExpertParts& parts, Rows<Bf16> y) {
  if (parts.place == nullptr)
    return launch_combine(parts.rows, parts.top_k, parts.shared, y, stream);
  combine_experts(stream, parts.rows, parts.place, parts.top_k, parts.shared, y);
}

}  // namespace galley::kernels::cuda
