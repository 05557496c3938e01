#include <cuda_runtime.h>

#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/weight_tiles.h"

namespace galley::kernels::cuda {
namespace {

constexpr int64_t kAlignment = 1024;  // of every part: bulk copies want 16, the swizzle 1,024

// Hands out parts of one block of memory; without memory it only adds up.
class Carver {
 public:
  explicit Carver(uint8_t* memory) : memory_(memory) {}

  template <class T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  int64_t used() const { return used_; }

 private:
  uint8_t* memory_;
  int64_t used_ = 0;
};

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
  uint8_t* x8 = nullptr;
  float* x_scale = nullptr;
  Bf16* inner = nullptr;
  uint8_t* inner8 = nullptr;
  float* inner_scale = nullptr;
  Bf16* out = nullptr;
  uint8_t* shared_x8 = nullptr;
  float* shared_x_scale = nullptr;
  Bf16* shared_inner = nullptr;
  uint8_t* shared_inner8 = nullptr;
  float* shared_inner_scale = nullptr;
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
  work.plan.block_count = carver.take<int32_t>(1);
  work.x8 = carver.take<uint8_t>(work.places * chunks * kChunk);
  work.x_scale = carver.take<float>(work.places * chunks);
  work.inner = carver.take<Bf16>(work.places * shape.inner);
  work.inner8 = carver.take<uint8_t>(work.places * inner_chunks * kChunk);
  work.inner_scale = carver.take<float>(work.places * inner_chunks);
  work.out = carver.take<Bf16>(work.places * shape.hidden);
  work.shared_x8 = carver.take<uint8_t>(work.shared_places * chunks * kChunk);
  work.shared_x_scale = carver.take<float>(work.shared_places * chunks);
  work.shared_inner = carver.take<Bf16>(rows * shape.inner);
  work.shared_inner8 = carver.take<uint8_t>(work.shared_places * inner_chunks * kChunk);
  work.shared_inner_scale = carver.take<float>(work.shared_places * inner_chunks);
  work.shared_out = carver.take<Bf16>(rows * shape.hidden);
  return work;
}

ProductArguments arguments(const FoldShape& shape, const uint8_t* weights, const uint8_t* x8,
                           const float* x_scale, int64_t places, int64_t outputs, Bf16* y) {
  ProductArguments args{};
  args.weights = weights;
  args.x = x8;
  args.x_scale = x_scale;
  args.x_rows = places;
  args.chunks = static_cast<int32_t>(shape.chunks());
  args.slots = static_cast<int32_t>(shape.slots());
  args.outputs = static_cast<int32_t>(outputs);
  args.y = y;
  args.y_stride = outputs;
  args.groups = 1;
  return args;
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

void run_experts(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles,
                 Rows<const Bf16> x, const int32_t* experts, const float* weights,
                 uint8_t* workspace, Rows<Bf16> y) {
  if (x.rows == 0) return;
  Carver carver(workspace);
  const Workspace work = carve_workspace(shape, x.rows, carver);
  const int64_t choices = x.rows * shape.top_k;
  const int32_t tokens = expert_block_tokens(choices, shape.experts);
  const FoldShape up_shape = shape.gate_up();
  const FoldShape down_shape = shape.down();

  plan_experts(stream, experts, weights, choices, shape.experts, tokens, work.plan);
  quantise_choices(stream, x, work.plan.place, shape.top_k, {work.x8, work.x_scale, work.places},
                   {work.shared_x8, work.shared_x_scale, work.shared_places});
  ProductArguments up = arguments(up_shape, tiles.gate_up, work.x8, work.x_scale, work.places,
                                  shape.inner, work.inner);
  up.expert_bytes = folded_fp4_bytes(up_shape);
  up.row_scale = tiles.gate_up_scale;
  up.experts = shape.experts;
  up.blocks = work.plan.blocks;
  up.block_count = work.plan.block_count;
  up.row_weight = work.plan.row_weight;
  up.limit = shape.swiglu_limit;
  expert_product(stream, ResultForm::kSwiGlu, tokens, up);
  ProductArguments shared_up =
      arguments(up_shape, tiles.shared_gate_up, work.shared_x8, work.shared_x_scale,
                work.shared_places, shape.inner, work.shared_inner);
  shared_up.rows = static_cast<int32_t>(x.rows);
  shared_up.limit = shape.swiglu_limit;
  dense_product(stream, ResultForm::kSwiGlu, shared_up);

  quantise_places(stream, Rows<const Bf16>(work.inner, work.places, shape.inner), work.plan.place,
                  choices, {work.inner8, work.inner_scale, work.places},
                  Rows<const Bf16>(work.shared_inner, x.rows, shape.inner),
                  {work.shared_inner8, work.shared_inner_scale, work.shared_places});
  ProductArguments down = arguments(down_shape, tiles.down, work.inner8, work.inner_scale,
                                    work.places, shape.hidden, work.out);
  down.expert_bytes = folded_fp4_bytes(down_shape);
  down.row_scale = tiles.down_scale;
  down.experts = shape.experts;
  down.blocks = work.plan.blocks;
  down.block_count = work.plan.block_count;
  expert_product(stream, ResultForm::kBf16, tokens, down);
  ProductArguments shared_down =
      arguments(down_shape, tiles.shared_down, work.shared_inner8, work.shared_inner_scale,
                work.shared_places, shape.hidden, work.shared_out);
  shared_down.rows = static_cast<int32_t>(x.rows);
  dense_product(stream, ResultForm::kBf16, shared_down);

  combine_experts(stream, Rows<const Bf16>(work.out, work.places, shape.hidden), work.plan.place,
                  shape.top_k, Rows<const Bf16>(work.shared_out, x.rows, shape.hidden), y);
}

}  // namespace galley::kernels::cuda
